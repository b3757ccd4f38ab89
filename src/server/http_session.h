// One connection: bytes in, requests out; answers in, bytes out. All of it happens on the thread of the
// sockets, except for the Exchange that it hands out. Knows the protocol; sockets and TLS are the Transport's
// business, what requests mean is the hooks'.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/http.h"

namespace sluice::server {

using Clock = std::chrono::steady_clock;

/// A connected socket. Every call has one callback, never from within the call; after close() none may come.
class Transport {
 public:
  virtual ~Transport() = default;
  using Done = std::function<void(bool ok)>;
  using Read = std::function<void(bool ok, std::string_view bytes)>;
  /// Greets the client (TLS).
  virtual void start(Done done) = 0;
  /// Some bytes, valid during the callback; not ok: the other side has closed, or an error.
  virtual void read(Read done) = 0;
  /// Writes some of the bytes, which stay where they are until the callback.
  virtual void write(std::string_view bytes, std::function<void(bool ok, size_t written)> done) = 0;
  /// Says that nothing more will be written. `done` comes when that is said, or after close().
  virtual void shut(Done done) = 0;
  virtual void close() = 0;
};

class HttpSession;

/// What all connections of a server share.
struct SessionHost {
  HttpOptions options;
  HttpHooks hooks;
  std::function<void(std::function<void()>)> post;  ///< runs it on the thread of the sockets
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
  bool draining = false;
  bool last_answers = false;  ///< each answer is its connection's last
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  /// `host` outlives it, and outlives what it posts.
  HttpSession(std::shared_ptr<SessionHost> host, std::unique_ptr<Transport> transport, std::string peer);
  ~HttpSession();

  void start();
  /// Looks at the time: closes what took too long, writes pings.
  void tick(Clock::time_point now);
  /// Closes the connection unless an answer is on its way, which will be its last.
  void drain();
  void close();
  bool busy() const { return state_ == State::Answering; }

 private:
  class Answer;
  struct Incoming;
  enum class State { Greeting, Idle, Head, Body, Answering, Lingering, Closed };

  void read_on();
  void received(std::string_view bytes);
  void parse();
  /// Runs it; without the memory for it the connection is closed.
  template <class Function>
  void guarded(Function function);
  bool parse_head();
  bool parse_body();
  void hand_over();
  void refuse(int status, const std::string& message);
  void refuse(const HttpResponse& response);
  void deadline_after(std::chrono::milliseconds time);

  void begin_answer(const HttpResponse& head, bool stream);
  void stream(std::string_view bytes);
  void end_answer();
  void send(std::string_view bytes);
  void write_on();
  void answered();
  void linger();
  void count_unsent();

  std::shared_ptr<SessionHost> host_;
  std::unique_ptr<Transport> transport_;
  std::string peer_;
  State state_ = State::Greeting;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::unique_ptr<Incoming> incoming_;  ///< from a request's first byte until it is handed over or refused
  std::string in_;                      ///< bytes that nobody has taken yet
  bool reading_ = false;

  std::weak_ptr<Answer> answer_;
  MemoryShare unsent_;         ///< what out_ and writing_ take
  std::string out_, writing_;  ///< to be written; being written from written_ on
  size_t written_ = 0;
  bool write_pending_ = false;
  bool begun_ = false, streaming_ = false, ended_ = false;
  bool chunked_ = false, keep_alive_ = false, head_only_ = false;
  std::string ping_;
  Headers headers_;  ///< of the answer, whatever it will be
  Clock::time_point last_write_;
  Clock::time_point write_deadline_ = Clock::time_point::max();
  size_t lingered_bytes_ = 0;
  bool forgotten_ = false;   ///< by whoever was to answer
  bool unsent_fits_ = true;  ///< in the memory that there is for clients
};

}  // namespace sluice::server
