// HTTPS over real sockets: a server with a certificate made here, and a client that trusts that one alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/client.h"
#include "server/http.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

template <auto F>
struct Free {
  template <class T>
  void operator()(T* object) const {
    F(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Free<SSL_free>>;
using File = std::unique_ptr<std::FILE, Free<std::fclose>>;

/// A certificate for localhost that its own key signs, and that key, as PEM files.
void make_certificate(const std::string& certificate_path, const std::string& key_path) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate made(X509_new());
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_set_pubkey(made.get(), key.get());
  X509_NAME* name = X509_get_subject_name(made.get());
  const auto* host = reinterpret_cast<const unsigned char*>("localhost");
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, host, -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
  X509_add_ext(made.get(), names, -1);
  X509_EXTENSION_free(names);
  ASSERT_GT(X509_sign(made.get(), key.get(), EVP_sha256()), 0);
  ASSERT_EQ(PEM_write_X509(File(std::fopen(certificate_path.c_str(), "w")).get(), made.get()), 1);
  ASSERT_EQ(PEM_write_PrivateKey(File(std::fopen(key_path.c_str(), "w")).get(), key.get(), nullptr, nullptr,
                                 0, nullptr, nullptr),
            1);
}

/// A client of TLS that checks whom it talks to.
class TlsClient {
 public:
  TlsClient(uint16_t port, const std::string& trusted, int newest = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())), socket_(port) {
    SSL_CTX_load_verify_locations(context_.get(), trusted.c_str(), nullptr);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_security_level(context_.get(), 0);  // it is the server that refuses old versions
    SSL_CTX_set_max_proto_version(context_.get(), newest);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set1_host(ssl_.get(), "localhost");
    SSL_set_fd(ssl_.get(), socket_.fd());
    greeted_ = SSL_connect(ssl_.get()) == 1;
    ERR_clear_error();
  }
  bool greeted() const { return greeted_; }
  std::string version() const { return SSL_get_version(ssl_.get()); }
  void send(const std::string& text) {
    ASSERT_EQ(SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())),
              static_cast<int>(text.size()));
  }
  /// Reads until `end` has come, or the connection has ended.
  std::string read_until(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (text.find(end) == std::string::npos) {
      const int got = SSL_read(ssl_.get(), buffer, sizeof buffer);
      if (got <= 0) {
        farewell_ = SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN;
        ERR_clear_error();
        break;
      }
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  /// Whether the server has said that it closes, rather than just doing so.
  bool farewell() const { return farewell_; }
  void say_goodbye() { SSL_shutdown(ssl_.get()); }
  test::Client& socket() { return socket_; }

 private:
  Context context_;
  test::Client socket_;
  Ssl ssl_;
  bool greeted_ = false, farewell_ = false;
};

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    make_certificate(folder_ + "/cert.pem", folder_ + "/key.pem");
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  HttpOptions options() const {
    HttpOptions options;
    options.port = 0;
    options.tick = 10ms;
    options.certificate = folder_ + "/cert.pem";
    options.key = folder_ + "/key.pem";
    return options;
  }
  void start(HttpOptions options) {
    HttpHooks hooks;
    hooks.gate = [](const HttpRequest&) { return std::nullopt; };
    hooks.headers = [](const HttpRequest&) { return Headers{}; };
    hooks.answering = [](int) {};
    hooks.error = [](const HttpRequest&, int status, const std::string& message) {
      return HttpResponse{status, "text/plain", message, {}};
    };
    hooks.handle = [this](const std::shared_ptr<Exchange>& exchange) {
      if (exchange->request().path == "/echo")
        return exchange->respond({200, "text/plain", exchange->request().body + "!", {}});
      exchange->on_gone([this] { ++gone_; });
      exchange->start_stream({200, "text/event-stream", "", {}}, "");
      exchange->write("data: one\n\n");
      if (exchange->request().path == "/held")
        held_.push_back(exchange);
      else
        exchange->finish();
    };
    server_.emplace(std::move(options), std::move(hooks));
    server_->start();
  }
  bool wait_connections(size_t count) {
    for (int i = 0; i < 6000 && server_->connections() != count; ++i) std::this_thread::sleep_for(10ms);
    return server_->connections() == count;
  }
  std::string trusted() const { return folder_ + "/cert.pem"; }

  const std::string folder_ =
      std::filesystem::temp_directory_path() / ("sluice_tls_" + std::to_string(getpid()));
  std::vector<std::shared_ptr<Exchange>> held_;  // the thread of the sockets'
  std::atomic<int> gone_{0};
  std::optional<HttpServer> server_;
};

TEST_F(Tls, GreetsAnswersAndStreams) {
  start(options());
  EXPECT_THAT(server_->address(), StartsWith("https://127.0.0.1:"));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server_->port(), trusted(), version);
    ASSERT_TRUE(client.greeted());
    EXPECT_EQ(client.version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    for (int i = 0; i < 3; ++i) {
      const std::string body(static_cast<size_t>(i) * 100'000, 'x');
      client.send(test::Client::request("POST", "/echo", body));
      const std::string reply = client.read_until("!");
      EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
      EXPECT_THAT(reply, EndsWith("\r\n\r\n" + body + "!"));
    }
    client.send(test::Client::request("GET", "/stream"));
    EXPECT_THAT(client.read_until("\r\n0\r\n\r\n"), HasSubstr("data: one\n\n"));
    client.send(test::Client::request("GET", "/echo", "", "Connection: close\r\n"));
    client.read_until("there is no more");
    EXPECT_TRUE(client.farewell()) << "an end that was not announced could be an attacker's";
    client.say_goodbye();
  }
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(Tls, RefusesOldVersionsStrangersAndPlainText) {
  start(options());
  EXPECT_FALSE(TlsClient(server_->port(), trusted(), TLS1_1_VERSION).greeted());
  EXPECT_FALSE(TlsClient(server_->port(), "/nowhere").greeted()) << "a client that trusts nobody";
  test::Client plain(server_->port());
  plain.send(test::Client::request("GET", "/echo"));
  EXPECT_TRUE(plain.ends());
  EXPECT_TRUE(wait_connections(0));
  EXPECT_TRUE(TlsClient(server_->port(), trusted()).greeted()) << "others are served";
}

TEST_F(Tls, DoesNotWaitForGreetings) {
  HttpOptions options = this->options();
  options.header_timeout = 150ms;
  start(options);
  test::Client silent(server_->port()), half(server_->port());
  half.send({"\x16\x03\x01\x02\x00\x01\x00\x01", 8});  // the beginning of a greeting
  EXPECT_TRUE(silent.ends());
  EXPECT_TRUE(half.ends());
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(Tls, ClientsLeaveAtAnyMoment) {
  start(options());
  for (int i = 0; i < 40; ++i) {
    TlsClient client(server_->port(), trusted());
    ASSERT_TRUE(client.greeted());
    if (i % 4 == 1) client.send("GET / HT");
    if (i % 4 == 2) client.send(test::Client::request("GET", "/held"));
    if (i % 4 == 3) client.send(test::Client::request("GET", "/echo", "", "Connection: close\r\n"));
    if (i % 4 == 2) client.read_until("one");
    if (i % 3 == 0) client.say_goodbye();
    if (i % 3 == 1) client.socket().reset();
  }
  EXPECT_TRUE(wait_connections(0));
  EXPECT_EQ(gone_, 10);
}

TEST_F(Tls, NamesWhatIsWrongWithItsFiles) {
  const auto message = [](HttpOptions options) -> std::string {
    try {
      HttpServer server(std::move(options), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  HttpOptions swapped = options(), other = options();
  swapped.certificate = swapped.key;
  EXPECT_THAT(message(swapped), StartsWith(folder_ + "/key.pem: "));
  make_certificate(folder_ + "/other.pem", folder_ + "/other_key.pem");
  other.key = folder_ + "/other_key.pem";
  EXPECT_THAT(message(other), HasSubstr("mismatch")) << "a key of another certificate";
  EXPECT_EQ(message(options()), "");
}

}  // namespace
}  // namespace sluice::server
