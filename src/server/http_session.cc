#include "server/http_session.h"

#include <fmt/format.h>

#include <boost/beast/http/parser.hpp>
#include <ctime>
#include <mutex>

namespace sluice::server {

namespace http = boost::beast::http;
using boost::beast::error_code;

namespace {

constexpr size_t kReadAhead = 64 << 10;   ///< of the next request, while this one is answered
constexpr size_t kLingerBytes = 4 << 20;  ///< of a refused body that are read, so that the refusal arrives
constexpr std::chrono::seconds kLinger{2};

/// A body as a string that grows with what has arrived, whatever length the head claims.
struct GrowingBody {
  using value_type = std::string;
  struct reader {
    std::string& body;
    template <bool IsRequest, class Fields>
    reader(http::header<IsRequest, Fields>&, value_type& value) : body(value) {}
    template <class Length>
    void init(const Length&, error_code& error) {
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t taken = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer buffer(*it);
        body.append(static_cast<const char*>(buffer.data()), buffer.size());
        taken += buffer.size();
      }
      return taken;
    }
    void finish(error_code& error) { error = {}; }
  };
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

std::string_view status_text(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

struct HttpSession::Parser {
  http::request_parser<GrowingBody> parser;
  HttpRequest request;
  size_t counted = 0;  ///< of the body, in the host's buffered_bytes
};

// The Exchange: what others do with it is posted to the thread of the sockets, in order.
class HttpSession::Answer : public Exchange {
 public:
  Answer(std::shared_ptr<SessionHost> host, std::weak_ptr<HttpSession> session, HttpRequest request)
      : host_(std::move(host)), session_(std::move(session)) {
    request_ = std::move(request);
  }
  ~Answer() override {
    if (!begun_.exchange(true)) {
      post([](HttpSession& session) { session.refuse(500, "the request was dropped: this is a bug"); });
    } else if (!ended_.exchange(true)) {
      post([](HttpSession& session) {  // half a stream must not look like a whole one
        session.chunked_ = session.keep_alive_ = false;
        session.end_answer();
      });
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
      if (const auto session = weak.lock(); session && session->state_ != State::Closed) function(*session);
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

HttpSession::~HttpSession() { forget_body(); }

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
  forget_body();
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
  const bool waiting = state_ == State::Answering && streaming_ && begun_ && !ended_ && !write_pending_;
  if (waiting && !ping_.empty() && now - last_write_ >= host_->options.ping_interval) stream(ping_);
}

void HttpSession::read_on() {
  if (reading_ || state_ == State::Closed || in_.size() >= kReadAhead) return;
  reading_ = true;
  transport_->read([self = shared_from_this()](bool ok, std::string_view bytes) {
    self->reading_ = false;
    // A client that has closed its side, also only the half that it writes to, is not waited for.
    if (!ok) return self->close();
    if (self->state_ == State::Closed) return;
    if (self->state_ == State::Lingering) {
      self->lingered_bytes_ += bytes.size();
      if (self->lingered_bytes_ > kLingerBytes) return self->close();
      return self->read_on();
    }
    self->in_ += bytes;
    self->parse();
  });
}

// Takes what there is of a request and reads on.
void HttpSession::parse() {
  if (state_ == State::Idle) {
    while (in_.starts_with("\r\n")) in_.erase(0, 2);  // RFC 9112, 2.2: between requests
    if (!in_.empty() && in_ != "\r") {                // half of an empty line may come alone
      state_ = State::Head;
      deadline_after(host_->options.header_timeout);
      parser_ = std::make_unique<Parser>();
      parser_->parser.header_limit(static_cast<uint32_t>(host_->options.max_header_bytes));
      parser_->parser.body_limit(host_->options.max_body_bytes);
    }
  }
  if (state_ == State::Head && !parse_head()) return;
  if (state_ == State::Body && !parse_body()) return;
  read_on();
}

// False: the request was refused.
bool HttpSession::parse_head() {
  error_code error;
  auto& parser = parser_->parser;
  in_.erase(0, parser.put(boost::asio::buffer(in_), error));
  if (error == http::error::need_more) {
    if (in_.size() < host_->options.max_header_bytes) return true;
    error = http::error::header_limit;
  }
  if (error == http::error::header_limit) return refuse(431, "the headers are too large"), false;
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes", host_->options.max_body_bytes)), false;
  if (error) return refuse(400, "this is no HTTP request: " + error.message()), false;
  if (!parser.is_header_done()) return true;

  HttpRequest& request = parser_->request;
  const auto& message = parser.get();
  const std::string_view target(message.target().data(), message.target().size());
  const size_t query = target.find('?');
  request.method = std::string(message.method_string());
  request.path = target.substr(0, query);
  if (query != std::string_view::npos) request.query = target.substr(query + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  }
  request.peer = peer_;
  headers_ = host_->hooks.headers(request);
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = request.method == "HEAD";
  if (const auto refusal = host_->hooks.gate(request)) {
    if (!parser.is_done()) keep_alive_ = false;  // its body is not read
    return refuse(*refusal), false;
  }
  state_ = State::Body;
  deadline_after(host_->options.body_timeout);
  parser.eager(true);
  if (!parser.is_done() && in_.empty() && lower(request.header("expect")) == "100-continue")
    send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

// False: refused, or handed over.
bool HttpSession::parse_body() {
  auto& parser = parser_->parser;
  error_code error;
  if (!parser.is_done() && !in_.empty()) in_.erase(0, parser.put(boost::asio::buffer(in_), error));
  if (error == http::error::need_more) error = {};
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes", host_->options.max_body_bytes)), false;
  if (error) return refuse(400, "the body makes no sense: " + error.message()), false;
  const size_t size = parser.get().body().size();
  host_->buffered_bytes += size - parser_->counted;
  parser_->counted = size;
  if (host_->buffered_bytes > host_->options.max_buffered_bytes)
    return refuse(503, "the server is receiving too much at once; try again"), false;
  if (!parser.is_done()) return true;
  hand_over();
  return false;
}

void HttpSession::forget_body() {
  if (!parser_) return;
  host_->buffered_bytes -= parser_->counted;
  parser_.reset();
}

void HttpSession::hand_over() {
  HttpRequest request = std::move(parser_->request);
  request.body = std::move(parser_->parser.get().body());
  forget_body();
  state_ = State::Answering;
  deadline_ = Clock::time_point::max();
  const auto answer = std::make_shared<Answer>(host_, weak_from_this(), std::move(request));
  answer_ = answer;
  read_on();  // to learn that the client has gone
  host_->hooks.handle(answer);
}

void HttpSession::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  const HttpRequest request = parser_ ? std::move(parser_->request) : HttpRequest{};
  refuse(host_->hooks.error(request, status, message));
}

void HttpSession::refuse(const HttpResponse& response) {
  forget_body();
  state_ = State::Answering;
  deadline_ = Clock::time_point::max();
  read_on();
  begin_answer(response, false);
  end_answer();
}

void HttpSession::begin_answer(const HttpResponse& head, bool stream) {
  if (host_->draining) keep_alive_ = false;
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
                      self->write_on();
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
