// HTTP/1.1 as plain structs: requests come in whole, answers go out whole or as a stream. The sockets behind
// it (http_server.cc) are nobody else's business, and this knows nothing of models or APIs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/memory.h"

namespace sluice::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  ///< "GET"
  std::string path;    ///< "/v1/models", without the query, as it was sent
  std::string query;   ///< behind the question mark
  Headers headers;     ///< names in lower case
  std::string body;
  std::string peer;    ///< the client's address; empty on a Unix socket
  std::string client;  ///< who asks, where clients share what there is: the address, or what the gate says

  /// The first header of that name (in lower case); empty: none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};
};

/// The answer to one request. From any thread; respond() or start_stream() once. A client whose request is
/// let go without an answer gets a 500.
class Exchange {
 public:
  virtual ~Exchange() = default;

  const HttpRequest& request() const { return request_; }
  /// The whole answer.
  virtual void respond(HttpResponse response) = 0;
  /// The head of an answer whose body comes in pieces; its own body is the first. While nothing else is
  /// written, `ping` is, from time to time; empty: never.
  virtual void start_stream(HttpResponse head, std::string ping) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  /// Whether the client has closed the connection or was too slow: nothing reaches it any more.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  const std::atomic<bool>& gone_flag() const { return gone_; }
  /// Is called once, on the thread of the sockets, when the client goes before the answer is whole; at once
  /// if it has gone. It must be quick.
  virtual void on_gone(std::function<void()> callback) = 0;
  /// The status of the answer; 0: none has begun.
  int status() const { return status_.load(std::memory_order_relaxed); }
  /// The request's body with the memory that it takes, for whoever lets it go before the request's end.
  std::pair<std::string, MemoryShare> take_body() {
    return {std::exchange(request_.body, {}), std::exchange(body_memory_, memory_.sibling())};
  }
  /// What the request holds besides, until its end.
  MemoryShare& memory() { return memory_; }

 protected:
  HttpRequest request_;
  MemoryShare body_memory_, memory_;
  std::atomic<bool> gone_{false};
  std::atomic<int> status_{0};
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;          ///< 0: any that is free
  std::string unix_socket;       ///< a path; listens there in place of host and port
  std::string certificate, key;  ///< PEM files; none: no TLS
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  /// Of what requests hold together; half of it a client.
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  size_t max_unsent_bytes = 16 << 20;  ///< of a stream whose reader is slow
  size_t max_connections = 16384;
  std::chrono::milliseconds header_timeout{15'000};  ///< from a request's first byte, or a TLS greeting
  std::chrono::milliseconds body_timeout{120'000};   ///< from its head
  std::chrono::milliseconds idle_timeout{120'000};   ///< between requests
  std::chrono::milliseconds write_timeout{60'000};   ///< without the client taking a byte
  std::chrono::milliseconds ping_interval{10'000};
  std::chrono::milliseconds tick{250};  ///< how often the times above are looked at
};

/// What a server's user decides. All are called on the thread of the sockets and must be quick.
struct HttpHooks {
  /// Looks at a request without its body: an answer refuses it, and its body is not read. It may say whose
  /// the request is.
  std::function<std::optional<HttpResponse>(HttpRequest& head)> gate;
  std::function<void(std::shared_ptr<Exchange>)> handle;
  /// Headers of every answer to this request.
  std::function<Headers(const HttpRequest& head)> headers;
  /// An answer with this status begins.
  std::function<void(int status)> answering;
  /// The answer to what is no request that could be handled; `request` may be empty.
  std::function<HttpResponse(const HttpRequest& request, int status, const std::string& message)> error;
};

class HttpServer {
 public:
  /// Listens. Throws Error that names the address or the file that is wrong.
  HttpServer(HttpOptions options, HttpHooks hooks);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// Closes every connection.
  ~HttpServer();

  /// Begins to take connections, which wait until then.
  void start();
  /// "http://127.0.0.1:8080"
  const std::string& address() const;
  uint16_t port() const;
  size_t connections() const;

  /// From now on an answer is its connection's last: clients that ask again look for a server anew.
  void let_go();
  /// Takes no more connections and requests, and waits until all answers are out or the time is over.
  /// Returns whether they were. Not from the thread of the sockets.
  bool drain(std::chrono::milliseconds at_most);
  /// Closes every connection. When it returns no hook is called any more. Not from the thread of the sockets.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "Not Found" for 404.
std::string_view status_text(int status);

}  // namespace sluice::server
