// Ranks as threads of one process, each with a channel of its own over this machine's network.
#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/ranks/ranks_backend.h"
#include "base/error.h"
#include "model/model.h"
#include "support/error_of.h"

namespace sluice::test {

/// A port that was free a moment ago.
inline int free_port() { return backend::Socket::listen_at("", 0).port(); }

inline backend::ChannelOptions rank_options(int rank, int ranks, int port) {
  backend::ChannelOptions options;
  options.launch = {.rank = rank, .ranks = ranks, .local_ranks = ranks, .port = port};
  options.identity = {"test", "model", "matmul, avx512; rope, avx512", int64_t{1} << 30};
  options.patience_s = 30;
  return options;
}

/// Runs `body` once a rank, side by side.
inline void run_ranks(int ranks, const std::function<void(int, backend::Channel&)>& body) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([=, &body] {
      backend::Channel channel(rank_options(rank, ranks, port));
      body(rank, channel);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What two ranks say of meeting each other; "" where they do. The second one comes after `late`, and after
/// `before`.
inline std::vector<std::string> meet_two(
    const std::function<void(backend::ChannelOptions&)>& change_second,
    const std::function<void(backend::ChannelOptions&)>& change_first = {},
    std::chrono::milliseconds late = {}, const std::function<void()>& before = {}) {
  backend::ChannelOptions first = rank_options(0, 2, free_port());
  if (change_first) change_first(first);
  backend::ChannelOptions second = rank_options(1, 2, first.launch.port);
  if (change_second) change_second(second);
  std::vector<std::string> said(2);
  std::thread other([&] {
    if (before) before();
    std::this_thread::sleep_for(late);
    said[1] = error_of([&] { backend::Channel channel(std::move(second)); });
  });
  said[0] = error_of([&] { backend::Channel channel(std::move(first)); });
  other.join();
  return said;
}

/// A model over so many ranks, each with a backend of its own.
class Ranks {
 public:
  Ranks(const std::string& path, int count, const std::function<std::shared_ptr<program::Backend>()>& make)
      : Ranks(path, count, make, {}) {}
  Ranks(const std::string& path, int count, const std::function<std::shared_ptr<program::Backend>()>& make,
        backend::Together together)
      : Ranks(
            path, count, [&make](int) { return make(); }, together) {}
  /// The same with backends that may exchange by themselves, each made where its rank runs.
  Ranks(const std::string& path, int count, const std::function<std::shared_ptr<program::Backend>(int)>& make,
        backend::Together together, std::vector<std::shared_ptr<program::Backend>> alike = {}) {
    const int port = free_port();
    channels_.resize(static_cast<size_t>(count));
    for (int rank = 1; rank < count; ++rank) {
      followers_.emplace_back([=, this] {
        const model::Model model = model::Model::load(path);
        const auto backend = make(rank);
        auto& channel = channels_[static_cast<size_t>(rank)];
        channel = std::make_unique<backend::Channel>(rank_options(rank, count, port));
        (void)error_of([&] {
          backend::follow(*channel, *backend, {model.program, model.weights}, together);
        });
      });
    }
    auto first = make(0);
    backend_ = backend::make_ranks_backend(std::move(first),
                                           std::make_shared<backend::Channel>(rank_options(0, count, port)),
                                           together, std::move(alike));
  }
  ~Ranks() {
    backend_.reset();
    for (std::thread& thread : followers_) thread.join();
  }
  program::Backend& backend() const { return *backend_; }
  backend::Channel& follower(int rank) const { return *channels_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<backend::Channel>> channels_;
  std::vector<std::thread> followers_;
  std::unique_ptr<program::Backend> backend_;
};

}  // namespace sluice::test
