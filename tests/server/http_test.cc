// The HTTP layer over real sockets, with hooks of the tests' own: no model, no API.
#include "server/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "base/error.h"
#include "server/client.h"
#include "server/http_fixture.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using test::Client;
using test::Reply;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(Http, AnswersAndKeepsTheConnection) {
  start();
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const Reply reply = client.ask("POST", "/echo?a=b&c", "body " + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST|a=b&c|body " + std::to_string(i));
    EXPECT_EQ(reply.header("connection"), "keep-alive");
    EXPECT_EQ(reply.header("x-test"), "yes");
  }
  EXPECT_EQ(client.ask("GET", "/echo").body, "GET||");
  const Reply head = client.ask("HEAD", "/echo");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "6");
  EXPECT_EQ(client.ask("GET", "/echo", "", "Connection: close\r\n").header("connection"), "close");
  EXPECT_TRUE(client.ends());
  EXPECT_EQ(answers_, 6);
  EXPECT_EQ(server_->address(), "http://127.0.0.1:" + std::to_string(server_->port()));
}

TEST_F(Http, TakesPiecesPipelinesAndChunks) {
  start();
  Client client(server_->port());
  const std::string request = Client::request("POST", "/echo", "abc");
  for (const char byte : "\r\n" + request) client.send({&byte, 1});  // an empty line between requests may be
  EXPECT_EQ(client.read_reply().body, "POST||abc");
  client.send(request + Client::request("GET", "/echo?2") + request);
  EXPECT_EQ(client.read_reply().body, "POST||abc");
  EXPECT_EQ(client.read_reply().body, "GET|2|");
  EXPECT_EQ(client.read_reply().body, "POST||abc");
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "POST||abcde");
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send("ok");
  EXPECT_EQ(client.read_reply().body, "POST||ok");
}

TEST_F(Http, SpeaksTheOldProtocol) {
  start();
  Client client(server_->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto exchange = held();
  exchange->write("data: 1\n\n");
  exchange->finish();
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.header("transfer-encoding"), "");
  EXPECT_EQ(reply.body, "data: 1\n\n");
}

TEST_F(Http, StreamsWithPings) {
  HttpOptions options = quick();
  options.ping_interval = 40ms;
  start(options);
  Client client(server_->port());
  client.send(Client::request("GET", "/stream"));
  const auto exchange = held();
  exchange->write("data: one\n\n");
  EXPECT_EQ(client.read_head().header("content-type"), "text/event-stream");
  std::string body;
  while (body.find(": ping\n\n") == std::string::npos && client.read_chunk(body)) {
  }
  exchange->write("data: two\n\n");
  exchange->finish();
  exchange->write("data: too late\n\n");
  while (client.read_chunk(body)) {
  }
  const std::string ping = ": ping\n\n";
  EXPECT_THAT(body, StartsWith("data: one\n\n" + ping));
  for (size_t at; (at = body.find(ping)) != std::string::npos;) body.erase(at, ping.size());
  EXPECT_EQ(body, "data: one\n\ndata: two\n\n");
  EXPECT_EQ(client.ask("GET", "/echo").body, "GET||") << "the connection goes on";
  EXPECT_EQ(gone_, 0);
}

TEST_F(Http, TellsThatTheClientHasGone) {
  start();
  for (const int way : {0, 1, 2}) {
    Client client(server_->port());
    client.send(Client::request("GET", way == 1 ? "/stream" : "/held"));
    const auto exchange = held();
    ASSERT_TRUE(exchange);
    EXPECT_FALSE(exchange->gone());
    if (way == 0) client.close();
    if (way == 1) client.reset();
    if (way == 2) client.half_close();
    EXPECT_TRUE(wait_gone(way + 1));
    EXPECT_TRUE(exchange->gone());
    bool at_once = false;
    exchange->on_gone([&] { at_once = true; });
    EXPECT_TRUE(at_once);
    exchange->write("into the void");
    exchange->finish();
  }
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(Http, ForgottenRequestsAreAnswered) {
  start();
  Client client(server_->port());
  const Reply reply = client.ask("GET", "/drop");
  EXPECT_EQ(reply.status, 500);
  Client streaming(server_->port());
  streaming.send(Client::request("GET", "/stream"));
  held()->write("data: half\n\n");  // and is let go
  std::string all;
  for (std::string more; !(more = streaming.receive()).empty();) all += more;
  EXPECT_THAT(all, HasSubstr("half"));
  EXPECT_THAT(all, testing::Not(HasSubstr("\r\n0\r\n\r\n")))
      << "half a stream must not look like a whole one";
}

TEST_F(Http, RefusesWhatIsNoRequest) {
  HttpOptions options = quick();
  options.max_header_bytes = 4096;
  options.max_body_bytes = 10'000;
  start(options);
  const struct {
    std::string text;
    int status;
  } cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {std::string("GET / HTTP/1.1\r\nX: \0\r\n\r\n", 24), 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551616\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n", 413},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4000\r\n" +
           std::string(0x4000, 'x') + "\r\n",
       413},
      {"GET / HTTP/1.1\r\nX: " + std::string(5000, 'x') + "\r\n\r\n", 431},
      {std::string(5000, 'x'), 431},
      {"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + std::string(9000, 'x'), 401},
  };
  for (const auto& c : cases) {
    Client client(server_->port());
    client.send(c.text);
    const Reply reply = client.read_reply();
    EXPECT_TRUE(reply.status == c.status || (c.status == 431 && reply.status == 400))
        << reply.status << " for " << c.text.substr(0, 80);
    EXPECT_EQ(reply.header("connection"), "close") << c.text.substr(0, 80);
    EXPECT_TRUE(client.ends());
  }
  Client client(server_->port());
  EXPECT_EQ(client.ask("GET", "/refused").status, 401);
  EXPECT_EQ(client.ask("GET", "/echo").status, 200) << "without a body the connection goes on";
}

TEST_F(Http, ARefusalOfAHugeBodyArrives) {
  HttpOptions options = quick();
  options.max_body_bytes = 1000;
  start(options);
  for (int i = 0; i < 10; ++i) {
    Client client(server_->port());
    std::thread writer([&client] {
      client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" +
                  std::string(3'000'000, 'x'));
    });
    EXPECT_EQ(client.read_reply().status, 413);
    writer.join();
  }
}

TEST_F(Http, DoesNotWaitForSlowClients) {
  HttpOptions options = quick();
  options.header_timeout = options.body_timeout = 150ms;
  options.write_timeout = 300ms;
  options.max_unsent_bytes = size_t{1} << 30;
  start(options);
  Client head(server_->port()), body(server_->port());
  head.send("GET / HT");
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12");
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_EQ(body.read_reply().status, 408);
  head.close();
  body.close();
  Client stuck(server_->port());  // asks, and never reads
  stuck.send(Client::request("GET", "/stream"));
  const auto exchange = held();
  // More than the system's own buffers between the two take: 4 and 32 MB are usual limits.
  for (int i = 0; i < 100; ++i) exchange->write(std::string(1'000'000, 'x'));
  EXPECT_TRUE(wait_gone(1));
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(Http, DoesNotKeepConnectionsThatAskNothing) {
  HttpOptions options = quick();
  options.idle_timeout = 150ms;
  start(options);
  Client silent(server_->port()), once(server_->port());
  EXPECT_TRUE(silent.ends());
  once.ask("GET", "/echo");  // which comes in time or not
  EXPECT_TRUE(once.ends());
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(Http, BuffersAreBounded) {
  HttpOptions options = quick();
  options.max_unsent_bytes = 1'000'000;
  options.memory = std::make_shared<Memory>(200'000);
  start(options);
  Client stuck(server_->port());
  stuck.send(Client::request("GET", "/stream"));
  const auto exchange = held();
  for (int i = 0; i < 100; ++i) exchange->write(std::string(1'000'000, 'x'));
  EXPECT_TRUE(wait_gone(1));
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server_->port());
    clients.back().send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" +
                        std::string(40'000, 'x'));
  }
  const auto answered = [&] {
    return std::count_if(clients.begin(), clients.end(), [](const Client& one) { return one.readable(); });
  };
  for (int i = 0; i < 6000 && answered() == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(answered(), 1);
  for (Client& client : clients)
    if (client.readable()) {
      EXPECT_EQ(client.read_reply().status, 503);
    }
  clients.clear();
  EXPECT_TRUE(wait_connections(0));
  Client client(server_->port());
  EXPECT_EQ(client.ask("POST", "/echo", std::string(90'000, 'x')).status, 200)
      << "nothing is counted any more";
}

TEST_F(Http, DrainsGracefully) {
  start();
  Client idle(server_->port()), streaming(server_->port()), half(server_->port());
  ASSERT_EQ(idle.ask("GET", "/echo").status, 200);
  half.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12");
  streaming.send(Client::request("GET", "/stream"));
  const auto exchange = held();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(server_->drain(200ms)) << "an answer is not out";
  EXPECT_TRUE(idle.ends());
  EXPECT_EQ(half.read_reply().status, 503);
  EXPECT_FALSE(Client(server_->port()).connected());
  auto drained = std::async([this] { return server_->drain(10s); });
  exchange->write("data: last\n\n");
  exchange->finish();
  EXPECT_THAT(streaming.read_reply().body, HasSubstr("data: last\n\n"));
  EXPECT_TRUE(streaming.ends());
  streaming.close();
  half.close();
  EXPECT_TRUE(drained.get());
}

TEST_F(Http, ListensOnUnixSockets) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("sluice_" + std::to_string(getpid()) + ".sock");
  HttpOptions options = quick();
  options.unix_socket = path;
  start(options);
  EXPECT_EQ(Client(path).ask("GET", "/echo?x").body, "GET|x|");
  EXPECT_THROW(HttpServer(options, {}), Error) << "somebody listens there";
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Http, NamesWhatIsWrongWithAnAddress) {
  start();
  const auto message = [](HttpOptions options) -> std::string {
    try {
      HttpServer server(std::move(options), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  HttpOptions taken = quick(), nowhere = quick(), socket = quick(), tls = quick(), half = quick();
  taken.port = server_->port();
  nowhere.host = "300.1.1.1";
  socket.unix_socket = "/dev/null";
  tls.certificate = tls.key = "/nowhere.pem";
  half.certificate = "/nowhere.pem";
  EXPECT_THAT(message(taken), HasSubstr("in use"));
  EXPECT_THAT(message(nowhere), StartsWith("--host 300.1.1.1: "));
  EXPECT_THAT(message(socket), StartsWith("/dev/null: "));
  EXPECT_THAT(message(tls), StartsWith("/nowhere.pem: "));
  EXPECT_THAT(message(half), HasSubstr("both"));
}

}  // namespace
}  // namespace sluice::server
