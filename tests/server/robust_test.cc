// The server with the bundled model under many clients at once, among them bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "server/bundled.h"
#include "server/client.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::BundledServer;
using test::Client;
using test::Reply;
using testing::HasSubstr;

json tale(int tokens, int seed, bool stream) {
  return {
      {"messages", {{{"role", "user"}, {"content", "Tell me tale " + std::to_string(seed) + " of a fox."}}}},
      {"max_tokens", tokens},
      {"seed", seed},
      {"stream", stream}};
}

std::string streamed_text(const Reply& reply) {
  std::string text;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const json choice = json::parse(event)["choices"][0];
    text += choice["delta"].value("content", "");
  }
  return text;
}

TEST(Serving, AStreamIsTheSameTextAsTheWhole) {
  BundledServer server;
  const json whole = Client(server.port()).post("/v1/chat/completions", tale(40, 1, false)).json();
  const Reply stream = Client(server.port()).post("/v1/chat/completions", tale(40, 1, true));
  EXPECT_EQ(streamed_text(stream), whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(stream.events().back(), "[DONE]");
  const json raw =
      Client(server.port())
          .post("/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 20}, {"temperature", 0}})
          .json();
  EXPECT_GT(raw["choices"][0]["text"].get<std::string>().size(), 20u);
}

TEST(Serving, ManyStreamsWithRandomCancels) {
  BundledServer server(64);
  constexpr int kClients = 64, kRounds = 3;
  std::atomic<int> ended{0}, left{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      std::minstd_rand random(static_cast<unsigned>(c + 1));
      for (int round = 0; round < kRounds; ++round) {
        Client client(server.port());
        const int kind = static_cast<int>(random() % 4);
        const json body = tale(static_cast<int>(5 + random() % 30), c * 10 + round, kind != 3);
        client.send(
            Client::request("POST", kind == 2 ? "/v1/messages" : "/v1/chat/completions", body.dump()));
        if (random() % 3 == 0) {  // leaves early, one way or another
          if (random() % 2 == 0) client.receive(static_cast<int>(random() % 200));
          if (random() % 2 == 0) client.reset();
          ++left;
          continue;
        }
        const Reply reply = client.read_reply();
        const bool whole = kind == 3   ? reply.json()["choices"][0]["finish_reason"].is_string()
                           : kind == 2 ? reply.body.find("event: message_stop") != std::string::npos
                                       : reply.body.find("\"finish_reason\":\"") != std::string::npos &&
                                             reply.events().back() == "[DONE]";
        ++(reply.status == 200 && whole ? ended : wrong);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ended + left, kClients * kRounds);
  EXPECT_GT(ended, kClients);
  EXPECT_GT(left, kClients / 2);
  for (int i = 0; i < 1000 && server.engine().stats().running + server.engine().stats().waiting > 0; ++i)
    std::this_thread::sleep_for(10ms);
  const engine::EngineStats stats = server.engine().stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.used_pages, 0) << "no page is lost";
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages);
}

TEST(Serving, BadClientsDisturbNobody) {
  BundledServer server;
  std::atomic<bool> ending{false};
  std::thread bad([&] {
    std::minstd_rand random(7);
    std::vector<Client> stuck;
    for (int i = 0; !ending; ++i) {
      Client client(server.port());
      std::string text = Client::request("POST", "/v1/chat/completions", tale(200, i, true).dump());
      switch (i % 6) {
        case 0: text.resize(random() % text.size()); break;  // breaks off
        case 1: text[random() % text.size()] ^= static_cast<char>(1 << (random() % 8)); break;
        case 2: text = std::string(random() % 3000, static_cast<char>(random())); break;
        case 3: text += text; break;                                 // and asks again at once
        case 4: text.insert(text.find("\r\n\r\n") + 4, "{"); break;  // no JSON
        default: break;                                              // asks, and does not read
      }
      client.send(text);
      if (random() % 2 == 0) client.half_close();
      if (random() % 4 == 0)
        client.reset();
      else if (stuck.size() < 50)
        stuck.push_back(std::move(client));
      else
        stuck[random() % stuck.size()] = std::move(client);
      std::this_thread::sleep_for(2ms);
    }
  });
  for (int i = 0; i < 6; ++i) {
    const Reply reply = Client(server.port()).post("/v1/chat/completions", tale(20, i, true));
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.events().back(), "[DONE]");
  }
  ending = true;
  bad.join();
  EXPECT_EQ(Client(server.port()).ask("GET", "/health").status, 200);
}

}  // namespace
}  // namespace sluice::server
