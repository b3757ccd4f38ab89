// The server of the HTTP tests: no model, no API, but hooks that answer, hold and drop what comes.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "server/client.h"
#include "server/http.h"

namespace sluice::server {

class Http : public testing::Test {
 protected:
  static HttpOptions quick() {
    HttpOptions options;
    options.port = 0;
    options.tick = std::chrono::milliseconds(10);
    return options;
  }

  void start(HttpOptions options = quick()) {
    HttpHooks hooks;
    hooks.gate = [](const HttpRequest& head) -> std::optional<HttpResponse> {
      if (head.path == "/refused") return HttpResponse{401, "text/plain", "no", {}};
      return {};
    };
    hooks.handle = [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); };
    hooks.headers = [](const HttpRequest&) { return Headers{{"X-Test", "yes"}}; };
    hooks.answering = [this](int) { ++answers_; };
    hooks.error = [](const HttpRequest&, int status, const std::string& message) {
      return HttpResponse{status, "text/plain", message, {}};
    };
    server_.emplace(std::move(options), std::move(hooks));
    server_->start();
  }

  // Runs on the thread of the sockets.
  void handle(std::shared_ptr<Exchange> exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/echo") {
      exchange->respond({200, "text/plain", request.method + "|" + request.query + "|" + request.body, {}});
    } else if (request.path == "/drop") {
      // let go without an answer
    } else {
      exchange->on_gone([this] {
        const std::lock_guard lock(mutex_);
        ++gone_;
        changed_.notify_all();
      });
      if (request.path == "/stream") exchange->start_stream({200, "text/event-stream", "", {}}, ": ping\n\n");
      const std::lock_guard lock(mutex_);
      held_ = std::move(exchange);
      changed_.notify_all();
    }
  }

  std::shared_ptr<Exchange> held() {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return held_ != nullptr; });
    return std::exchange(held_, nullptr);
  }
  bool wait_gone(int count) {
    std::unique_lock lock(mutex_);
    return wait(lock, [&] { return gone_ == count; });
  }
  /// Up to a minute, counted in short waits: while the whole process stands still, no time passes.
  template <typename Condition>
  bool wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) changed_.wait_for(lock, std::chrono::milliseconds(10));
    return condition();
  }
  bool wait_connections(size_t count) {
    for (int i = 0; i < 6000 && server_->connections() != count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return server_->connections() == count;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Exchange> held_;
  int gone_ = 0;
  std::atomic<int> answers_{0};
  std::optional<HttpServer> server_;
};

}  // namespace sluice::server
