// One client's requests do not take from others what is theirs: words, places, a server that answers; and
// what nobody waits for ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <new>

#include "server/api_fixture.h"
#include "server/bundled.h"
#include "server/workers.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Client;
using test::ParrotServer;
using test::Reply;
using testing::HasSubstr;

std::string key(const std::string& name) { return "x-api-key: " + name + "\r\n"; }

struct PromptTokens {
  int64_t prompt, cached;
};
PromptTokens ask(uint16_t port, const std::string& name, const std::string& text) {
  const json body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 1}};
  const json usage =
      Client(port).post("/v1/chat/completions", body, name.empty() ? "" : key(name)).json()["usage"];
  return {usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]};
}

TEST(PromptsOfOthers, AreNotFoundByAnotherKey) {
  ServerOptions options = test::quick_server();
  options.api_keys = {"alice", "mallory"};
  ParrotServer server(options);
  server.parrot.say("Hi.");
  const std::string secret = std::string(200, 'x') + "My bank PIN is 7391 and my dog is Rex";
  EXPECT_EQ(ask(server.port(), "alice", secret).cached, 0);
  EXPECT_GE(ask(server.port(), "alice", secret).cached, 200) << "her own are";
  EXPECT_EQ(ask(server.port(), "mallory", secret).cached, 0);
  // Digit by digit, as who guesses would: what mallory finds are mallory's own prompts, the same whatever
  // alice writes.
  std::vector<int64_t> guesses[2];
  for (const bool beside_alice : {false, true}) {
    ParrotServer fresh(options);
    fresh.parrot.say("Hi.");
    for (const char digit : std::string("0123456789")) {
      if (beside_alice) ask(fresh.port(), "alice", secret);
      for (const char* behind : {"", "!"}) {
        const std::string guess = std::string(200, 'x') + "My bank PIN is " + digit + behind;
        guesses[beside_alice].push_back(ask(fresh.port(), "mallory", guess).cached);
      }
    }
  }
  EXPECT_EQ(guesses[0], guesses[1]);
}

TEST(PromptsOfOthers, AreSharedByWholePagesWhereTheOperatorSaysSo) {
  ServerOptions options = test::quick_server();
  options.api_keys = {"alice", "mallory"};
  options.share_prefixes = true;
  ParrotServer server(options);
  server.parrot.say("Hi.");
  const std::string text = std::string(300, 'x') + "and an end";
  const PromptTokens first = ask(server.port(), "alice", text);
  EXPECT_EQ(first.cached, 0);
  const PromptTokens second = ask(server.port(), "mallory", text);
  EXPECT_EQ(second.cached, (first.prompt - 1) / 64 * 64) << "whole pages, and nothing of the last one";
  EXPECT_GT(ask(server.port(), "alice", text).cached, second.cached);
}

TEST(PromptsOfOthers, AreSharedWithoutKeys) {
  ParrotServer server;
  server.parrot.say("Hi.");
  const std::string text(150, 'x');
  EXPECT_EQ(ask(server.port(), "", text).cached, 0);
  const PromptTokens again = ask(server.port(), "", text);
  EXPECT_EQ(again.cached, again.prompt - 1);
}

TEST(Places, OneClientsManyAnswersLeaveOneForAnother) {
  ServerOptions options = test::quick_server();
  options.api_keys = {"alice", "mallory"};
  ParrotServer server(options);
  server.parrot.say(std::string(3000, 'a'), 2ms);
  std::vector<Client> flood;
  for (int i = 0; i < 5; ++i) {
    flood.emplace_back(server.port());
    flood.back().send(Client::request(
        "POST", "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3000,"n":32,"stream":true})",
        key("mallory")));
    EXPECT_EQ(flood.back().read_head().status, 200);
  }
  while (server.engine().stats().running < 8) std::this_thread::sleep_for(1ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(server.port(), "alice", "hello").cached, 0);
  // The first place that mallory's answers would leave by themselves is seconds away.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  for (int i = 0; i < 1000 && server.engine().stats().preemptions_total == 0; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_GT(server.engine().stats().preemptions_total, 0);
}

TEST(Health, SaysThatTheEngineHasFailed) {
  ParrotServer server;
  server.parrot.say("Hi.");
  EXPECT_EQ(Client(server.port()).ask("GET", "/health").status, 200);
  server.parrot.fails = true;
  const json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  const Reply failed = Client(server.port()).post("/v1/chat/completions", body);
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.body, HasSubstr("the device is gone"));
  const Reply health = Client(server.port()).ask("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("the engine has failed: the device is gone"));
  EXPECT_EQ(Client(server.port()).post("/v1/chat/completions", body).status, 503);
  EXPECT_EQ(Client(server.port()).ask("GET", "/v1/models").status, 200);
}

TEST(Rebinding, StrangersNamesAreRefusedWhereThereIsNoKey) {
  const auto status = [](uint16_t port, const std::string& path, const std::string& host,
                         const std::string& headers = "") {
    Client client(port);
    client.send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers + "\r\n");
    return client.read_reply().status;
  };
  ServerOptions options = test::quick_server();
  options.hosts = {"chat.example"};
  ParrotServer server(options);
  for (const char* path : {"/props", "/slots", "/metrics", "/v1/models", "/"}) {
    EXPECT_EQ(status(server.port(), path, "evil.example:8080"), 403) << path;
    EXPECT_EQ(status(server.port(), path, "localhost:8080"), 200) << path;
    EXPECT_EQ(status(server.port(), path, "chat.example"), 200) << path;
  }
  Client whole(server.port());  // the URL's host counts, not the header's
  whole.send("GET http://evil.example/props HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(whole.read_reply().status, 403);
  EXPECT_EQ(status(server.port(), "/health", "probe.example"), 200);
  ServerOptions with_key = test::quick_server();
  with_key.api_keys = {"secret"};
  ParrotServer locked(with_key);
  EXPECT_EQ(status(locked.port(), "/props", "chat.example", key("secret")), 200) << "the key tells";
  EXPECT_EQ(status(locked.port(), "/props", "chat.example"), 401);
}

TEST(Workers, GoOnWithoutMemoryForOne) {
  Workers workers(1);
  const auto queue = std::make_shared<SerialQueue>(workers, "a");
  std::atomic<int> ran = 0;
  workers.post("a", [] { throw std::bad_alloc(); });
  queue->post([] { throw std::bad_alloc(); });
  queue->post([&] { ++ran; });
  workers.post("b", [&] { ++ran; });
  for (int i = 0; i < 1000 && ran < 2; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(ran, 2);
}

/// The time that this process has computed.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(GoneClients, WorkForThemEnds) {
  std::atomic<int> lines = 0;
  ServerOptions options = test::quick_server();
  options.log = {LogLevel::Requests, [&](std::string_view) { ++lines; }};
  test::BundledServer server(16, options);
  std::string words, rules = "root ::= (r0", enums;
  for (int i = 0; i < 3'000'000; ++i) words += "ab\\u0041 ";
  for (int i = 0; i < 40'000; ++i)
    enums += (i > 0 ? ",\"" : "\"") + std::to_string(i * 7919 % 1000003) + "\"";
  for (int i = 1; i < 3000; ++i) rules += " | r" + std::to_string(i);
  rules += ")*\\n";
  for (int i = 0; i < 3000; ++i) rules += "r" + std::to_string(i) + " ::= [a-z ]{1,30} [a-z ,.]\\n";
  const std::string head =
      R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":1900,"ignore_eos":true)";
  const std::pair<const char*, std::string> cases[] = {
      {"/tokenize", R"({"content":")" + words + R"(","with_pieces":true})"},
      {"/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":")" + words + R"("}]})"},
      {"/apply-template", R"({"messages":[{"role":"user","content":")" + words + R"("}]})"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + words + R"("}]})"},
      {"/v1/chat/completions",
       head + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"enum":[)" + enums +
           "]}}}}"},
      {"/v1/chat/completions", head + R"(,"grammar":")" + rules + R"("})"},
      {"/v1/chat/completions", head + R"(,"n":16})"},
      {"/v1/completions", R"({"prompt":"x","max_tokens":2000,"ignore_eos":true,"n":16,"stream":true})"}};
  for (const auto& [path, body] : cases) {
    const int before = lines;
    Client client(server.port());
    client.send(Client::request("POST", path, body));
    std::this_thread::sleep_for(150ms);  // in the middle of it, or at its end
    const bool was_at_work = lines == before;
    client.close();
    const double begin = cpu_seconds();
    const auto left = std::chrono::steady_clock::now();
    for (int i = 0; i < 5000 && lines == before; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(lines, before + 1) << path;
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - left).count();
    std::printf("%s, %zu bytes: %s; ended %.0f ms after its client had gone, of processor time %.0f ms\n",
                path, body.size(), was_at_work ? "at work" : "over", waited * 1e3,
                (cpu_seconds() - begin) * 1e3);
#ifndef SLUICE_SANITIZED
    EXPECT_LT(cpu_seconds() - begin, 0.4) << path;  // all threads together
#endif
  }
}

}  // namespace
}  // namespace sluice::server
