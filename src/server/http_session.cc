#include "server/http_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <mutex>
#include <new>

#include "server/chunked.h"
#include "server/http_head.h"

namespace sluice::server {

namespace {

constexpr size_t kReadAhead = 64 << 10;     ///< of the next request, while this one is answered
constexpr size_t kLittleUnsent = 64 << 10;  ///< of a stream, which goes on while memory is short
/// So many bytes of a refused body are read, or as many as one may have, so that the refusal arrives.
constexpr size_t kLingerBytes = 4 << 20;
constexpr std::chrono::seconds kLinger{5};

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

std::string_view status_text(int status) {
  const auto text = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {text.data(), text.size()};
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

/// A request on its way in.
struct HttpSession::Incoming {
  explicit Incoming(const HttpOptions& options) : head(options) {}
  HttpHead head;
  ChunkedBody chunks;
  std::string body;
  MemoryShare memory;  ///< the body's
};

// The Exchange: what others do with it is posted to the thread of the sockets, in order.
class HttpSession::Answer : public Exchange {
 public:
  Answer(std::shared_ptr<SessionHost> host, std::weak_ptr<HttpSession> session, HttpRequest request,
         MemoryShare body)
      : host_(std::move(host)), session_(std::move(session)) {
    request_ = std::move(request);
    body_memory_ = std::move(body);
    memory_ = body_memory_.sibling();
  }
  ~Answer() override {
    try {
      if (!begun_.exchange(true)) {
        post([](HttpSession& session) { session.refuse(500, "the request was dropped: this is a bug"); });
      } else if (!ended_.exchange(true)) {
        post([](HttpSession& session) {  // half a stream must not look like a whole one
          session.chunked_ = session.keep_alive_ = false;
          session.end_answer();
        });
      }
    } catch (const std::bad_alloc&) {  // the session finds out (tick())
    }
  }

  void respond(HttpResponse response) override {
    if (begun_.exchange(true)) return;
    status_ = response.status;
    ended_ = true;
    forget_callback();
    post([response = std::move(response)](HttpSession& session) {
      session.begin_answer(response, false);
      session.end_answer();
    });
  }
  void start_stream(HttpResponse head, std::string ping) override {
    if (begun_.exchange(true)) return;
    status_ = head.status;
    post([head = std::move(head), ping = std::move(ping)](HttpSession& session) mutable {
      session.ping_ = std::move(ping);
      session.begin_answer(head, true);
    });
  }
  void write(std::string bytes) override {
    if (!begun_ || ended_ || gone_) return;
    post([bytes = std::move(bytes)](HttpSession& session) { session.stream(bytes); });
  }
  void finish() override {
    if (!begun_ || ended_.exchange(true)) return;
    forget_callback();
    post([](HttpSession& session) { session.end_answer(); });
  }
  void on_gone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_ && !ended_) {
        callback_ = std::move(callback);
        return;
      }
    }
    if (gone_) callback();
  }

  /// The connection is closed.
  void leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback.swap(callback_);
    }
    if (callback) callback();
  }

 private:
  void forget_callback() {
    std::function<void()> callback;  // may own this object's owner: let it go without the lock
    const std::lock_guard lock(mutex_);
    callback.swap(callback_);
  }
  template <class F>
  void post(F function) {
    host_->post([weak = session_, function = std::move(function)]() mutable {
      const auto session = weak.lock();
      if (session && session->state_ != State::Closed) session->guarded([&] { function(*session); });
    });
  }

  std::shared_ptr<SessionHost> host_;
  std::weak_ptr<HttpSession> session_;
  std::atomic<bool> begun_{false}, ended_{false};
  std::mutex mutex_;
  std::function<void()> callback_;
};

HttpSession::HttpSession(std::shared_ptr<SessionHost> host, std::unique_ptr<Transport> transport,
                         std::string peer)
    : host_(std::move(host)), transport_(std::move(transport)), peer_(std::move(peer)) {}

HttpSession::~HttpSession() = default;

template <class Function>
void HttpSession::guarded(Function function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    close();
  }
}

void HttpSession::deadline_after(std::chrono::milliseconds time) { deadline_ = Clock::now() + time; }

void HttpSession::start() {
  deadline_after(host_->options.header_timeout);
  transport_->start([self = shared_from_this()](bool ok) {
    if (!ok) return self->close();
    if (self->state_ != State::Greeting) return;
    self->state_ = State::Idle;
    self->deadline_after(self->host_->options.idle_timeout);
    self->read_on();
  });
}

void HttpSession::close() {
  if (state_ == State::Closed) return;
  const auto self = shared_from_this();  // the host may hold the last other reference
  state_ = State::Closed;
  transport_->close();
  incoming_.reset();
  unsent_.set(0);
  if (const auto answer = answer_.lock()) answer->leave();
  host_->sessions.erase(self);
}

void HttpSession::drain() {
  if (state_ == State::Head || state_ == State::Body) return refuse(503, "the server is shutting down");
  if (state_ == State::Greeting || state_ == State::Idle) close();
}

void HttpSession::tick(Clock::time_point now) {
  if (now >= write_deadline_) return close();
  if (now >= deadline_) {
    if (state_ == State::Head || state_ == State::Body)
      return refuse(408, "the request took too long to arrive");
    return close();
  }
  if (state_ == State::Answering && !ended_ && answer_.expired()) {
    if (std::exchange(forgotten_, true)) return close();  // nor is its last word on the way: no memory for it
  }
  const bool waiting = state_ == State::Answering && streaming_ && begun_ && !ended_ && !write_pending_;
  if (waiting && !ping_.empty() && now - last_write_ >= host_->options.ping_interval) stream(ping_);
}

void HttpSession::read_on() {
  if (reading_ || state_ == State::Closed) return;
  // The next request's bytes wait until this one is answered. Reading goes on, or nobody would see the client
  // go: who sends more than that has its connection closed behind the answer.
  if (in_.size() >= kReadAhead && state_ != State::Answering) return;
  reading_ = true;
  transport_->read([self = shared_from_this()](bool ok, std::string_view bytes) {
    self->reading_ = false;
    // A client that has closed its side, also only the half that it writes to, is not waited for.
    if (!ok) return self->close();
    if (self->state_ != State::Closed) self->guarded([&] { self->received(bytes); });
  });
}

void HttpSession::received(std::string_view bytes) {
  if (state_ == State::Lingering) {
    lingered_bytes_ += bytes.size();
    if (lingered_bytes_ > std::max(kLingerBytes, host_->options.max_body_bytes)) return close();
    return read_on();
  }
  if (state_ == State::Answering && in_.size() + bytes.size() > kReadAhead) {
    keep_alive_ = false;
    in_ = {};
    return read_on();
  }
  in_ += bytes;
  parse();
}

// Takes what there is of a request and reads on.
void HttpSession::parse() {
  if (state_ == State::Idle) {
    while (in_.starts_with("\r\n")) in_.erase(0, 2);  // RFC 9112, 2.2: between requests
    if (!in_.empty() && in_ != "\r") {                // half of an empty line may come alone
      state_ = State::Head;
      deadline_after(host_->options.header_timeout);
      incoming_ = std::make_unique<Incoming>(host_->options);
    }
  }
  if (state_ == State::Head && !parse_head()) return;
  if (state_ == State::Body && !parse_body()) return;
  read_on();
}

// False: the request was refused.
bool HttpSession::parse_head() {
  HttpHead& head = incoming_->head;
  const auto problem = head.take(in_);
  if (!head.done() && !problem) return true;
  head.request.peer = head.request.client = peer_;
  if (problem) return refuse(problem->status, problem->message), false;
  headers_ = host_->hooks.headers(head.request);
  keep_alive_ = head.keep_alive;
  chunked_ = head.answers_in_chunks;
  head_only_ = head.request.method == "HEAD";
  if (const auto refusal = host_->hooks.gate(head.request)) {
    if (head.chunked || head.length > 0) keep_alive_ = false;  // its body is not read
    return refuse(*refusal), false;
  }
  incoming_->memory = MemoryShare(host_->options.memory, head.request.client);
  state_ = State::Body;
  deadline_after(host_->options.body_timeout);
  if ((head.chunked || head.length > 0) && in_.empty() &&
      lower_case(head.request.header("expect")) == "100-continue")
    send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

// False: refused, or handed over.
bool HttpSession::parse_body() {
  const HttpHead& head = incoming_->head;
  std::string& body = incoming_->body;
  const size_t before = body.size();
  if (head.chunked) {
    in_.erase(0, incoming_->chunks.take(in_, body));
    if (const auto error = incoming_->chunks.error(); !error.empty())
      return refuse(400, fmt::format("the body makes no sense: {}", error)), false;
    if (body.size() > host_->options.max_body_bytes)
      return refuse(413, fmt::format("the body is larger than {} bytes", host_->options.max_body_bytes)),
             false;
  } else {
    const size_t count = std::min(in_.size(), static_cast<size_t>(head.length) - body.size());
    body.append(in_, 0, count);
    in_.erase(0, count);
  }
  if (!incoming_->memory.grow(body.size() - before))
    return refuse(503, "the server holds too much for its clients at once; try again"), false;
  if (head.chunked ? !incoming_->chunks.done() : body.size() < head.length) return true;
  hand_over();
  return false;
}

void HttpSession::hand_over() {
  const std::unique_ptr<Incoming> incoming = std::move(incoming_);
  HttpRequest request = std::move(incoming->head.request);
  request.body = std::move(incoming->body);
  unsent_ = MemoryShare(host_->options.memory, request.client);
  state_ = State::Answering;
  forgotten_ = false;
  deadline_ = Clock::time_point::max();
  const auto answer =
      std::make_shared<Answer>(host_, weak_from_this(), std::move(request), std::move(incoming->memory));
  answer_ = answer;
  read_on();  // to learn that the client has gone
  host_->hooks.handle(answer);
}

void HttpSession::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  const HttpRequest request = incoming_ ? std::move(incoming_->head.request) : HttpRequest{};
  refuse(host_->hooks.error(request, status, message));
}

void HttpSession::refuse(const HttpResponse& response) {
  incoming_.reset();
  state_ = State::Answering;
  deadline_ = Clock::time_point::max();
  read_on();
  begin_answer(response, false);
  end_answer();
}

void HttpSession::begin_answer(const HttpResponse& head, bool stream) {
  if (host_->draining || host_->last_answers) keep_alive_ = false;
  host_->hooks.answering(head.status);
  begun_ = true;
  streaming_ = stream;
  chunked_ = chunked_ && stream;
  if (stream && !chunked_) keep_alive_ = false;  // its end is the connection's
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", head.status, status_text(head.status), date_now());
  if (!head.content_type.empty()) text += fmt::format("Content-Type: {}\r\n", head.content_type);
  if (chunked_) text += "Transfer-Encoding: chunked\r\n";
  if (!stream && head.status != 204) text += fmt::format("Content-Length: {}\r\n", head.body.size());
  text += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const auto& [name, value] : headers_) text += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : head.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  if (stream) {
    send(text);
    this->stream(head.body);
  } else {
    if (!head_only_) text += head.body;
    send(text);
  }
}

void HttpSession::stream(std::string_view bytes) {
  if (!begun_ || ended_ || bytes.empty() || head_only_) return;
  if (out_.size() > host_->options.max_unsent_bytes) return close();
  if (!unsent_fits_ && out_.size() > kLittleUnsent) return close();  // nobody reads it fast enough
  if (!chunked_) return send(bytes);
  std::string chunk = fmt::format("{:x}\r\n", bytes.size());
  chunk += bytes;
  chunk += "\r\n";
  send(chunk);
}

void HttpSession::end_answer() {
  if (ended_ || state_ != State::Answering) return;
  ended_ = true;
  if (chunked_ && !head_only_) out_ += "0\r\n\r\n";
  write_on();
}

void HttpSession::send(std::string_view bytes) {
  out_ += bytes;
  last_write_ = Clock::now();
  write_on();
  count_unsent();
}

void HttpSession::count_unsent() {
  unsent_fits_ = unsent_.set(state_ == State::Closed ? 0 : out_.size() + writing_.size());
}

void HttpSession::write_on() {
  if (write_pending_ || state_ == State::Closed) return;
  if (written_ == writing_.size()) {
    if (out_.empty()) {
      write_deadline_ = Clock::time_point::max();
      if (ended_ && state_ == State::Answering) answered();
      return;
    }
    writing_.clear();
    writing_.swap(out_);
    written_ = 0;
  }
  write_pending_ = true;
  write_deadline_ = Clock::now() + host_->options.write_timeout;
  transport_->write(std::string_view(writing_).substr(written_),
                    [self = shared_from_this()](bool ok, size_t written) {
                      self->write_pending_ = false;
                      if (!ok) return self->close();
                      self->written_ += written;
                      self->guarded([&] {
                        self->write_on();
                        self->count_unsent();
                      });
                    });
}

// The answer is out: on to the next request.
void HttpSession::answered() {
  answer_.reset();
  begun_ = streaming_ = ended_ = head_only_ = false;
  ping_.clear();
  headers_.clear();
  writing_ = {};
  written_ = 0;
  if (!keep_alive_ || host_->draining) return linger();
  state_ = State::Idle;
  deadline_after(host_->options.idle_timeout);
  host_->post([self = shared_from_this()] {
    if (self->state_ == State::Idle) self->parse();
  });
}

// Closing at once would reset the connection while the client still writes, and take the answer from it.
void HttpSession::linger() {
  state_ = State::Lingering;
  deadline_after(kLinger);
  in_ = {};
  transport_->shut([self = shared_from_this()](bool) {});
  read_on();
}

}  // namespace sluice::server
