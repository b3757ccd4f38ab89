// Requests that two readers could take differently, and names under which nobody may ask.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "server/access.h"
#include "server/chunked.h"
#include "server/client.h"
#include "server/http_fixture.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using test::Client;
using test::Reply;

/// All that comes back before the connection ends, or nothing more comes.
std::string answers(uint16_t port, const std::string& bytes) {
  Client client(port);
  client.send(bytes);
  std::string all;
  for (std::string more; !(more = client.receive(2000)).empty();) all += more;
  return all;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST_F(Http, RefusesWhatOthersCouldReadDifferently) {
  start();
  const std::string next = "GET /echo?smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  const auto post = [](const std::string& headers) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
  };
  const std::string chunked = "Transfer-Encoding: chunked\r\n", chunks = "3\r\nabc\r\n0\r\n\r\n";
  const std::vector<std::string> cases = {
      post("Transfer-Encoding: gzip\r\n"),
      post("Transfer-Encoding: gzip, chunked\r\n") + chunks,
      post("Transfer-Encoding: chunked, gzip\r\n") + chunks,
      post("Transfer-Encoding: chunked, chunked\r\n") + chunks,
      post("Transfer-Encoding: identity\r\n"),
      post("Transfer-Encoding: xchunked\r\n") + chunks,
      post("Transfer-Encoding:\r\n") + chunks,
      post("Transfer-Encoding: \"chunked\"\r\n") + chunks,
      post(chunked + chunked) + chunks,
      post("Transfer-Encoding: gzip\r\n" + chunked) + chunks,
      post(chunked + "Transfer-Encoding: identity\r\n") + chunks,
      post("Transfer-Encoding : chunked\r\n") + chunks,
      post(chunked + "Content-Length: 3\r\n") + chunks,
      post("Content-Length: 3\r\n" + chunked) + chunks,
      post("Content-Length: 3, 3\r\n") + "abc",
      post("Content-Length: 3\r\nContent-Length: 3\r\n") + "abc",
      post("Content-Length: +3\r\n") + "abc",
      post("Content-Length: 0x3\r\n") + "abc",
      "POST /echo HTTP/1.0\r\nHost: x\r\n" + chunked + "\r\n" + chunks,
      "GET /echo HTTP/1.1\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a b\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a,b\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: u@b\r\n\r\n",
      "GET echo HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http:///echo HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET HTTPS HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http:/ HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET ftp://x/echo HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /echo HTTP/1.1\nHost: x\n\n",
      post(chunked) + "3\nabc\n0\n\n",
      post(chunked) + "3\r\nabc\n0\r\n\r\n",
      post(chunked) + "3\r\nabcd\r\n0\r\n\r\n",
      post(chunked) + "3\r\nab\r\n0\r\n\r\n",
      post(chunked) + "0x3\r\nabc\r\n0\r\n\r\n",
      post(chunked) + "-3\r\nabc\r\n0\r\n\r\n",
      post(chunked) + "\r\nabc\r\n0\r\n\r\n",
      post(chunked) + ";a=b\r\nabc\r\n0\r\n\r\n",
      post(chunked) + "3;a\nb\r\nabc\r\n0\r\n\r\n",
      post(chunked) + "3\r\nabc\r\n0\r\nX: a\nb\r\n\r\n",
      post(chunked) + "3;" + std::string(20'000, 'x'),
      post(chunked) + "0\r\nX: " + std::string(20'000, 'x'),
  };
  for (const std::string& text : cases) {
    const std::string all = answers(server_->port(), text + next);
    EXPECT_TRUE(all.starts_with("HTTP/1.1 400 ")) << text.substr(0, 120) << "\n" << all.substr(0, 300);
    EXPECT_EQ(count_of(all, "HTTP/1.1 "), 1u) << "and nothing behind it is read: " << text.substr(0, 120);
    EXPECT_EQ(all.find("smuggled"), std::string::npos) << text.substr(0, 120);
  }
  const std::string huge =
      answers(server_->port(), post(chunked) + "fffffffffffffff\r\n" + std::string(100, 'x'));
  EXPECT_EQ(huge, "") << "what has not come takes nothing; the connection waits for it";
  EXPECT_TRUE(answers(server_->port(), post(chunked) + "ffffffffffffffff\r\n").starts_with("HTTP/1.1 400 "));
}

TEST_F(Http, ExtensionsOfManyChunksHaveALimitTogether) {
  start();
  std::string text = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 100; ++i) text += "1;" + std::string(1000, 'x') + "\r\na\r\n";
  EXPECT_TRUE(answers(server_->port(), text + "0\r\n\r\n").starts_with("HTTP/1.1 400 "));
}

TEST_F(Http, TakesWhatTheProtocolAllows) {
  start();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n";
  const std::string next = "GET /echo?next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  for (const char* chunks :
       {"3\r\nabc\r\n0\r\n\r\n", "3;name=value;other=\"a;b\"\r\nabc\r\n0\r\n\r\n",
        "0003\r\nabc\r\n00\r\n\r\n", "1\r\na\r\n2 \r\nbc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nX: trailer\r\nY: another\r\n\r\n", "3\r\nabc\r\n0;last\r\n\r\n"}) {
    const std::string all = answers(server_->port(), post + chunks + next);
    EXPECT_NE(all.find("POST||abc"), std::string::npos) << chunks << all;
    EXPECT_NE(all.find("GET|next|"), std::string::npos) << chunks;
  }
  EXPECT_NE(answers(server_->port(), post + "1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n" + next)
                .find("POST||abcdefghijklmnopqrstuvwxyzHTTP"),
            std::string::npos);
  const auto ask = [&](const std::string& line) {
    return answers(server_->port(), line + "Connection: close\r\n\r\n");
  };
  EXPECT_NE(ask("GET http://sluice.example:8080/echo?a=b HTTP/1.1\r\nHost: x\r\n").find("GET|a=b|"),
            std::string::npos);
  EXPECT_NE(ask("GET HTTP://sluice.example/echo HTTP/1.1\r\nHost: x\r\n").find("GET||"), std::string::npos);
  EXPECT_NE(ask("GET /echo?http://x/ HTTP/1.1\r\nHost: x\r\n").find("GET|http://x/|"), std::string::npos);
  EXPECT_NE(ask("GET /echo HTTP/1.0\r\n").find("GET||"), std::string::npos) << "older than Host";
  EXPECT_NE(ask("GET /echo HTTP/1.1\r\nHost:\r\n").find("GET||"), std::string::npos);
}

TEST_F(Http, PipelinedJunkHidesNobody) {
  start();
  for (const size_t bytes : {1000u, 70'000u, 3'000'000u}) {
    const int before = gone_;
    Client client(server_->port());
    client.send(Client::request("GET", "/held"));
    const auto exchange = held();
    ASSERT_TRUE(exchange);
    client.send(std::string(bytes, 'x'));
    EXPECT_FALSE(exchange->gone());
    client.close();
    EXPECT_TRUE(wait_gone(before + 1)) << bytes;
  }
  // Who stays has an answer, and then the connection ends.
  Client client(server_->port());
  client.send(Client::request("GET", "/held"));
  const auto exchange = held();
  client.send(std::string(100'000, 'x'));
  std::this_thread::sleep_for(100ms);
  exchange->respond({200, "text/plain", "here", {}});
  EXPECT_EQ(client.read_reply().body, "here");
  EXPECT_TRUE(client.ends());
}

// A second reading of the same rules: of a whole text, by its lines.
std::optional<std::string> plain_chunks(std::string_view text) {
  std::string body;
  for (;;) {
    const size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return {};
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    line = line.substr(0, line.find_first_of("; \t"));
    if (line.empty() || line.size() > 15) return {};
    size_t size = 0;
    for (const char c : line) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) return {};
      size = size * 16 + static_cast<size_t>(std::stoi(std::string(1, c), nullptr, 16));
    }
    if (size == 0) break;
    if (text.size() < size + 2 || text.substr(size, 2) != "\r\n") return {};
    body += text.substr(0, size);
    text.remove_prefix(size + 2);
  }
  for (;;) {
    const size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return {};
    if (end == 0) return body;
    text.remove_prefix(end + 2);
  }
}

TEST(ChunkedBody, AgreesWithAPlainReadingHoweverItComes) {
  std::mt19937 random(3);
  const auto below = [&random](size_t n) { return random() % n; };
  int good = 0, bad = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text, expected;
    for (size_t chunk = below(4); chunk > 0; --chunk) {
      const std::string data(1 + below(30), static_cast<char>('a' + below(3)));
      expected += data;
      text += fmt::format("{:x}{}\r\n{}\r\n", data.size(), below(3) == 0 ? ";x=\"y\"" : "", data);
    }
    text += below(4) == 0 ? "0\r\nTrailer: 1\r\n\r\n" : "0\r\n\r\n";
    const bool damaged = below(2) == 0;
    if (damaged) {
      const size_t at = below(text.size());
      if (below(2) == 0)
        text.erase(at, 1 + below(2));
      else
        text[at] = "0123456789abcdef;\r\n x"[below(21)];
    }
    ChunkedBody reader;
    std::string body;
    size_t taken = 0;
    while (taken < text.size() && !reader.done() && reader.error().empty()) {
      const size_t piece = 1 + below(7);
      taken += reader.take(std::string_view(text).substr(taken, piece), body);
    }
    const auto plain = plain_chunks(text);
    if (!damaged) {
      ASSERT_TRUE(reader.done());
      ASSERT_EQ(body, expected);
    }
    if (reader.done()) {  // stricter than the plain reading, but never another body
      ASSERT_TRUE(plain) << text;
      ASSERT_EQ(body, *plain) << text;
    }
    ++(reader.done() ? good : bad);
  }
  EXPECT_GT(good, 8000);
  EXPECT_GT(bad, 3000);
}

TEST(Hosts, AdmitsAddressesAndNamesThatNoStrangerHas) {
  const auto admits = [](const Hosts& hosts, const std::string& host) {
    HttpRequest request;
    request.headers.emplace_back("host", host);
    return hosts.admits(request);
  };
  const Hosts none({}), some({"chat.example", "10.0.0.1"}), any({"*"});
  for (const char* good :
       {"localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:1", "192.168.1.7", "[::1]:80", "[fe80::1]",
        "box", "box:8080", "box.local", "sluice.svc.cluster.local:80", "a.localhost", "host.docker.internal",
        "nas.home.arpa", "", "box.local."})
    EXPECT_TRUE(admits(none, good)) << good;
  for (const char* bad :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "evillocal.example", "notlocal.com", "local.", "1.2.3.4.nip.io", "evil.example."}) {
    if (std::string(bad) != "local.") {
      EXPECT_FALSE(admits(none, bad)) << bad;
    }
    EXPECT_TRUE(admits(any, bad));
  }
  EXPECT_TRUE(admits(some, "Chat.Example:443"));
  EXPECT_FALSE(admits(some, "www.chat.example"));
}

}  // namespace
}  // namespace sluice::server
