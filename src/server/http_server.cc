// The sockets behind http.h: one thread that waits for all of them. Plain and TLS connections, TCP and Unix.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "base/error.h"
#include "server/http_session.h"

namespace sluice::server {

namespace asio = boost::asio;
using boost::system::error_code;
using Stream = asio::generic::stream_protocol;

namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when there are no more file descriptors

class PlainTransport : public Transport {
 public:
  /// `scratch` is every connection's: what was read is used at once.
  PlainTransport(Stream::socket socket, std::shared_ptr<std::array<char, 64 << 10>> scratch)
      : socket_(std::move(socket)), scratch_(std::move(scratch)) {
    error_code ignored;
    socket_.non_blocking(true, ignored);
  }
  void start(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done(true); });
  }
  void read(Read done) override {
    socket_.async_wait(Stream::socket::wait_read, [this, done = std::move(done)](error_code error) {
      if (error || !socket_.is_open()) return done(false, {});
      const size_t size = socket_.read_some(asio::buffer(*scratch_), error);
      if (error == asio::error::would_block || error == asio::error::try_again) return read(done);
      done(!error && size > 0, {scratch_->data(), size});
    });
  }
  void write(std::string_view bytes, std::function<void(bool, size_t)> done) override {
    socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                             [done = std::move(done)](error_code error, size_t size) { done(!error, size); });
  }
  void shut(Done done) override {
    error_code error;
    socket_.shutdown(Stream::socket::shutdown_send, error);
    asio::post(socket_.get_executor(), [done = std::move(done), ok = !error] { done(ok); });
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  Stream::socket socket_;
  std::shared_ptr<std::array<char, 64 << 10>> scratch_;
};

class TlsTransport : public Transport {
 public:
  TlsTransport(Stream::socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}
  void start(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [done = std::move(done)](error_code error) { done(!error); });
  }
  void read(Read done) override {
    stream_.async_read_some(asio::buffer(buffer_),
                            [this, done = std::move(done)](error_code error, size_t size) {
                              done(!error && size > 0, {buffer_.data(), size});
                            });
  }
  void write(std::string_view bytes, std::function<void(bool, size_t)> done) override {
    stream_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                             [done = std::move(done)](error_code error, size_t size) { done(!error, size); });
  }
  void shut(Done done) override {
    stream_.async_shutdown([done = std::move(done)](error_code error) { done(!error); });
  }
  void close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<Stream::socket> stream_;
  std::array<char, 8 << 10> buffer_;
};

asio::ip::tcp::endpoint resolve(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  asio::ip::tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), asio::ip::tcp::resolver::passive, error);
  if (error || found.empty()) fail("--host {}: {}", host, error ? error.message() : "no such address");
  return found.begin()->endpoint();
}

/// The client's address, without its port; empty on a Unix socket.
std::string address_of(const Stream::socket& socket) {
  error_code error;
  const auto generic = socket.remote_endpoint(error);
  asio::ip::tcp::endpoint remote;
  const int family = generic.protocol().family();
  if (error || (family != AF_INET && family != AF_INET6) || generic.size() > remote.capacity()) return {};
  std::memcpy(remote.data(), generic.data(), generic.size());
  return remote.address().to_string(error);
}

}  // namespace

struct HttpServer::Impl {
  std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  std::shared_ptr<SessionHost> host = std::make_shared<SessionHost>();
  std::unique_ptr<asio::ssl::context> tls;
  std::shared_ptr<std::array<char, 64 << 10>> scratch = std::make_shared<std::array<char, 64 << 10>>();
  asio::basic_socket_acceptor<Stream> acceptor{*io};
  asio::steady_timer timer{*io}, accept_pause{*io};
  std::thread thread;
  std::string address;
  uint16_t port = 0;
  std::atomic<size_t> connections{0};
  bool closing = false;  // the thread of the sockets' alone
  std::mutex mutex;      // over what follows
  std::condition_variable changed;
  bool drained = false;  // every connection has been told

  void listen_tcp();
  void listen_unix();
  void load_certificate();
  void accept();
  void welcome(Stream::socket socket);
  void tick();
  void count();
  void drain();
  void close();
};

void HttpServer::Impl::listen_tcp() {
  const HttpOptions& options = host->options;
  const asio::ip::tcp::endpoint wanted = resolve(*io, options.host, options.port);
  const auto check = [&](const error_code& error) {
    if (error) fail("{}:{}: {}", options.host, options.port, error.message());
  };
  error_code error;
  acceptor.open(wanted.protocol(), error), check(error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error), check(error);
  acceptor.bind(wanted, error), check(error);
  acceptor.listen(4096, error), check(error);
  asio::ip::tcp::endpoint bound;
  const auto generic = acceptor.local_endpoint(error);
  check(error);
  std::memcpy(bound.data(), generic.data(), std::min(bound.capacity(), generic.size()));
  port = bound.port();
  const bool v6 = wanted.address().is_v6();
  address = fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", v6 ? "[" : "", wanted.address().to_string(),
                        v6 ? "]" : "", port);
}

void HttpServer::Impl::listen_unix() {
  const std::string& path = host->options.unix_socket;
  const auto check = [&](const error_code& error) {
    if (error) fail("{}: {}", path, error.message());
  };
  struct sockaddr_un limits;
  if (path.size() >= sizeof limits.sun_path)
    fail("{}: a Unix socket's path has at most {} characters", path, sizeof limits.sun_path - 1);
  const asio::local::stream_protocol::endpoint wanted(path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) fail("{}: is there and is no socket", path);
    error_code error;
    asio::local::stream_protocol::socket probe(*io);
    probe.connect(wanted, error);
    if (!error) fail("{}: another server listens there", path);
    ::unlink(path.c_str());  // of a server that was killed
  }
  error_code error;
  acceptor.open(wanted.protocol(), error), check(error);
  acceptor.bind(wanted, error), check(error);
  acceptor.listen(4096, error), check(error);
  address = "unix:" + path;
}

void HttpServer::Impl::load_certificate() {
  const HttpOptions& options = host->options;
  if (options.certificate.empty() && options.key.empty()) return;
  if (options.certificate.empty() || options.key.empty()) fail("TLS needs both a certificate and its key");
  for (const std::string& file : {options.certificate, options.key})  // TLS's own words name no reason
    if (::access(file.c_str(), R_OK) != 0) fail("{}: {}", file, std::strerror(errno));
  using Context = asio::ssl::context;
  tls = std::make_unique<Context>(Context::tls_server);
  tls->set_options(Context::default_workarounds | Context::no_tlsv1 | Context::no_tlsv1_1);
  ::SSL_CTX_set_mode(tls->native_handle(), SSL_MODE_RELEASE_BUFFERS);  // idle connections hold none
  error_code error;
  tls->use_certificate_chain_file(options.certificate, error);
  if (error) fail("{}: {}; expected a certificate as PEM", options.certificate, error.message());
  tls->use_private_key_file(options.key, Context::pem, error);
  if (error) fail("{}: {}; expected the certificate's key as PEM", options.key, error.message());
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](error_code error, Stream::socket socket) {
    if (!acceptor.is_open()) return;
    try {
      if (!error) welcome(std::move(socket));
    } catch (const std::bad_alloc&) {  // the connection goes
    }
    if (!error || error == asio::error::connection_aborted) return accept();
    accept_pause.expires_after(kAcceptPause);  // most likely no file descriptor is free
    accept_pause.async_wait([this](error_code cancelled) {
      if (!cancelled && acceptor.is_open()) accept();
    });
  });
}

void HttpServer::Impl::welcome(Stream::socket socket) {
  if (host->sessions.size() >= host->options.max_connections) {
    static constexpr std::string_view kFull =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: "
        "close\r\n\r\n";
    error_code ignored;
    if (!tls) ::send(socket.native_handle(), kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    socket.shutdown(Stream::socket::shutdown_send, ignored);
    return;
  }
  const int on = 1;  // fails on a Unix socket, which needs it not
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::string peer = address_of(socket);
  std::unique_ptr<Transport> transport;
  if (tls)
    transport = std::make_unique<TlsTransport>(std::move(socket), *tls);
  else
    transport = std::make_unique<PlainTransport>(std::move(socket), scratch);
  const auto session = std::make_shared<HttpSession>(host, std::move(transport), std::move(peer));
  host->sessions.insert(session);
  connections = host->sessions.size();
  session->start();
}

void HttpServer::Impl::tick() {
  timer.expires_after(host->options.tick);
  timer.async_wait([this](error_code cancelled) {
    if (cancelled || closing) return;  // a timer that has run out can no longer be cancelled
    tick();
    const Clock::time_point now = Clock::now();
    const std::vector<std::shared_ptr<HttpSession>> all(host->sessions.begin(), host->sessions.end());
    for (const auto& session : all) session->tick(now);
    count();
  });
}

void HttpServer::Impl::count() {
  const std::lock_guard lock(mutex);
  connections = host->sessions.size();
  changed.notify_all();
}

// Connections that are in the middle of an answer stay; whoever waits for drain() learns when they have gone.
void HttpServer::Impl::drain() {
  error_code ignored;
  acceptor.close(ignored);
  host->draining = true;
  const std::vector<std::shared_ptr<HttpSession>> all(host->sessions.begin(), host->sessions.end());
  for (const auto& session : all) session->drain();
  {
    const std::lock_guard lock(mutex);
    drained = true;
  }
  count();
}

// On the thread of the sockets; then no work is left and it ends.
void HttpServer::Impl::close() {
  closing = true;
  error_code ignored;
  acceptor.close(ignored);
  timer.cancel();
  accept_pause.cancel();
  const std::vector<std::shared_ptr<HttpSession>> all(host->sessions.begin(), host->sessions.end());
  for (const auto& session : all) session->close();
}

HttpServer::HttpServer(HttpOptions options, HttpHooks hooks) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.host->options = std::move(options);
  impl.host->hooks = std::move(hooks);
  // A strand keeps the order of posts from several threads; the context itself does not: what its own thread
  // posts waits until the running handler has ended.
  impl.host->post = [io = impl.io, strand = asio::make_strand(*impl.io)](std::function<void()> function) {
    asio::post(strand, std::move(function));
  };
  impl.load_certificate();
  if (impl.host->options.unix_socket.empty())
    impl.listen_tcp();
  else
    impl.listen_unix();
}

void HttpServer::start() {
  impl_->accept();
  impl_->tick();
  impl_->thread = std::thread([io = impl_->io] {
    for (bool running = true; running;) {
      try {
        io->run();
        running = false;
      } catch (const std::bad_alloc&) {  // costs whoever it was for; the others go on
      }
    }
  });
}

HttpServer::~HttpServer() {
  stop();
  const std::string& path = impl_->host->options.unix_socket;
  if (!path.empty()) ::unlink(path.c_str());
}

void HttpServer::stop() {
  if (!impl_->thread.joinable()) return;
  asio::post(*impl_->io, [this] { impl_->close(); });
  impl_->thread.join();
}

const std::string& HttpServer::address() const { return impl_->address; }
uint16_t HttpServer::port() const { return impl_->port; }
size_t HttpServer::connections() const { return impl_->connections; }

void HttpServer::let_go() {
  asio::post(*impl_->io, [host = impl_->host] { host->last_answers = true; });
}

bool HttpServer::drain(std::chrono::milliseconds at_most) {
  Impl& impl = *impl_;
  if (!impl.thread.joinable()) return true;
  asio::post(*impl.io, [&impl] { impl.drain(); });
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&impl] { return impl.drained; });
  return impl.changed.wait_for(lock, at_most, [&impl] { return impl.connections == 0; });
}

}  // namespace sluice::server
