// What requests hold of memory: counted, shared between clients, refused beyond the limit and given back.
#include "server/memory.h"

#include <gtest/gtest.h>

#include <thread>

#include "server/api_fixture.h"
#include "server/constraint_cache.h"

namespace sluice::server {
namespace {

using nlohmann::json;
using test::Client;
using test::ParrotServer;
using test::Reply;

TEST(Memory, AClientHoldsHalfAtMostAndAllTogetherTheLimit) {
  const auto memory = std::make_shared<Memory>(1000);
  MemoryShare a(memory, "a"), b(memory, "b"), c(memory, "c");
  EXPECT_TRUE(a.grow(500));
  EXPECT_FALSE(a.grow(1));
  EXPECT_FALSE(a.sibling().grow(1)) << "whichever of the client's shares it is";
  EXPECT_FALSE(b.grow(501));
  EXPECT_TRUE(b.grow(400));
  EXPECT_FALSE(c.grow(101));
  EXPECT_TRUE(c.grow(100));
  EXPECT_EQ(memory->used(), 1000u);
  EXPECT_FALSE(b.set(450)) << "it is there, whatever the limit says, but known to be too much";
  EXPECT_EQ(memory->used(), 1050u);
  EXPECT_FALSE(c.grow(1));
  a = MemoryShare(memory, "a");
  EXPECT_EQ(memory->used_by("a"), 0u);
  EXPECT_TRUE(c.grow(400));
  MemoryShare moved = std::move(c);
  EXPECT_EQ(moved.bytes(), 500u);
  EXPECT_EQ(c.bytes(), 0u);
  moved.set(0);
  b.set(0);
  EXPECT_EQ(memory->used(), 0u);
  EXPECT_TRUE(MemoryShare().grow(size_t{1} << 60)) << "of nothing";
  EXPECT_FALSE(a.grow(~size_t{0}));
}

TEST(Memory, ThreadsCountRight) {
  const auto memory = std::make_shared<Memory>(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 2000; ++i) {
        MemoryShare one(memory, "client " + std::to_string((t + i) % 3));
        EXPECT_TRUE(one.grow(100));
        one.set(static_cast<size_t>(i % 200));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->used(), 0u);
}

TEST(Memory, OfAConstraintIsCountedOnceForAllItsRequests) {
  struct Large : text::TokenConstraint {
    bool allowed(std::span<uint32_t>) override { return false; }
    bool accept(int32_t) override { return true; }
    bool may_end() const override { return true; }
    std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Large>(); }
    size_t bytes() const override { return 1000; }
  };
  const auto memory = std::make_shared<Memory>(1 << 20);
  ConstraintCache cache;
  std::vector<Bound> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(cache.get("key", [] { return std::make_unique<Large>(); }));
    requests.back().use->count(MemoryShare(memory, "client " + std::to_string(i)));
    EXPECT_EQ(memory->used(), 1000u);
  }
  requests.push_back(cache.get("other", [] { return std::make_unique<Large>(); }));
  requests.back().use->count(MemoryShare(memory, "a"));
  EXPECT_EQ(memory->used(), 2000u);
  requests.erase(requests.begin());
  EXPECT_EQ(memory->used(), 2000u) << "others still have it";
  requests.clear();
  EXPECT_EQ(memory->used(), 0u) << "what is only cached is nobody's";
}

/// A server whose requests may hold 4 MB, 2 MB a client.
class Account : public testing::Test {
 protected:
  static constexpr size_t kLimit = 4 << 20;
  static ServerOptions options() {
    ServerOptions options = test::quick_server();
    options.http.memory = std::make_shared<Memory>(kLimit);
    return options;
  }
  void start(ServerOptions given) {
    memory_ = given.http.memory;
    server_.emplace(std::move(given));
  }
  Reply post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return Client(server_->port()).ask("POST", path, body, headers);
  }
  static std::string chat(const std::string& content, const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":")" + content + R"("}])" + more + "}";
  }
  void expect_refused(const Reply& reply) {
    EXPECT_EQ(reply.status, 503) << reply.body.substr(0, 200);
    EXPECT_EQ(reply.header("retry-after"), "1");
  }
  void expect_nothing_held() {
    for (int i = 0; i < 1000 && memory_->used() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(memory_->used(), 0u);
  }

  std::shared_ptr<Memory> memory_;
  std::optional<ParrotServer> server_;
};

TEST_F(Account, RefusesBodiesAndWhatTheyBecome) {
  start(options());
  server_->parrot.say("Hi.");
  EXPECT_EQ(post("/v1/chat/completions", chat("Hello")).status, 200);
  expect_refused(post("/v1/chat/completions", chat(std::string(2'200'000, 'x'))));  // the body alone
  expect_refused(post("/v1/chat/completions", chat(std::string(600'000, 'x'))));    // and its copies
  std::string values = "[0";
  for (int i = 0; i < 100'000; ++i) values += ",0";
  expect_refused(post("/v1/chat/completions", chat("Hello", R"(,"metadata":)" + values + "]")));
  expect_refused(
      post("/tokenize", R"({"content":")" + std::string(300'000, 'a') + R"(","with_pieces":true})"));
  EXPECT_EQ(post("/v1/chat/completions", chat("Hello", std::string(1'000'000, ' '))).status, 200)
      << "white space becomes nothing";
  EXPECT_EQ(post("/tokenize", R"({"content":"aaa","with_pieces":true})").json()["tokens"].size(), 3u);
  expect_nothing_held();
}

TEST_F(Account, CountsUntilTheRequestEnds) {
  start(options());
  server_->parrot.say(std::string(3000, 'a'), std::chrono::microseconds(1000));
  const std::string space(1'500'000, ' ');
  std::vector<Client> running;
  for (int i = 0; i < 4; ++i) {  // bodies of 6 MB together, which nobody needs any more once they are read
    running.emplace_back(server_->port());
    running.back().send(
        Client::request("POST", "/v1/chat/completions", chat("Hello", R"(,"stream":true)" + space)));
    EXPECT_EQ(running.back().read_head().status, 200);
  }
  EXPECT_LT(memory_->used(), 200'000u);
  EXPECT_GT(memory_->used(), 0u) << "prompts and answers";
  running.clear();
  expect_nothing_held();
}

TEST_F(Account, OneClientsRequestsLeaveRoomForOthers) {
  ServerOptions given = options();
  given.api_keys = {"alice", "mallory"};
  start(given);
  server_->parrot.say("Hi.");
  std::vector<Client> stuck;
  for (int i = 0; i < 4; ++i) {  // bodies that never end
    stuck.emplace_back(server_->port());
    stuck.back().send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: mallory\r\nContent-Length: "
        "900000\r\n\r\n" +
        std::string(800'000, ' '));
  }
  for (int i = 0; i < 1000 && memory_->used() < 1'600'000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(memory_->used(), kLimit / 2);
  EXPECT_EQ(
      post("/v1/chat/completions", chat("Hello", std::string(1'000'000, ' ')), "x-api-key: alice\r\n").status,
      200);
  stuck.clear();
  expect_nothing_held();
}

TEST_F(Account, AnswersThatAreTooMuchAreCutOffWithAnError) {
  start(options());
  server_->parrot.say(std::string(3000, 'a'));
  expect_refused(post("/v1/chat/completions",
                      chat("Hello", R"(,"think":false,"logprobs":true,"top_logprobs":20,"n":16)")));
  // One that is not read while it is written: what the sockets do not hold, the server has to.
  Client slow(server_->port());
  slow.send(Client::request(
      "POST", "/v1/chat/completions",
      chat("Hello", R"(,"think":false,"logprobs":true,"top_logprobs":20,"n":16,"stream":true)")));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const Reply stream = slow.read_reply();
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("too little memory"), std::string::npos) << stream.body.size();
  EXPECT_EQ(post("/v1/chat/completions", chat("Hello", R"(,"logprobs":true,"max_tokens":5)")).status, 200);
  expect_nothing_held();
}

TEST_F(Account, ReturnsAllOfIt) {
  start(options());
  server_->parrot.say("A tale of a fox.");
  const std::string bodies[] = {chat("Hello"),
                                chat("Hello", R"(,"stream":true)"),
                                "no json",
                                chat("Hello", R"(,"n":0)"),
                                chat("Hello", R"(,"response_format":{"type":"json_object"},"max_tokens":3)"),
                                chat("Hello", R"(,"grammar":"root ::= [a-z]+ x")"),
                                chat(std::string(5000, 'x'))};
  for (const char* path : {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions",
                           "/tokenize", "/apply-template", "/v1/messages/count_tokens"}) {
    for (const std::string& body : bodies) {
      post(path, body);
      Client gone(server_->port());
      gone.send(Client::request("POST", path, body));
    }
  }
  expect_nothing_held();
}

TEST_F(Account, LogitBiasHasALimit) {
  start(options());
  server_->parrot.say("Hi.");
  json bias = json::array();
  for (int i = 0; i < 4096; ++i) bias.push_back({i % 250, 0.5});
  json body = json::parse(chat("Hello"));
  body["logit_bias"] = bias;
  EXPECT_EQ(post("/v1/chat/completions", body.dump()).status, 200);
  body["logit_bias"].push_back({1, 0.5});
  const Reply refused = post("/v1/chat/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "logit_bias");
}

}  // namespace
}  // namespace sluice::server
