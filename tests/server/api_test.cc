// What the APIs have in common, over a socket: bodies that are no requests, access, ends, and the small
// endpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_fixture.h"
#include "server/recorded.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Api;
using test::Client;
using test::ParrotServer;
using test::Reply;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(Api, RecordedRequestsAreAnswered) {
  for (const test::RecordedRequest& request : test::kRecordedRequests) {
    say("Hm.</think>Yes.");
    const Reply reply = Client(server_->port()).ask("POST", request.path, request.body, request.headers);
    EXPECT_EQ(reply.status, 200) << request.client << ": " << reply.body;
    const bool counts = std::string_view(request.path).find("count") != std::string_view::npos;
    EXPECT_THAT(reply.body, HasSubstr(counts ? "input_tokens" : "\"Y\"")) << request.client;
  }
}

TEST_F(Api, BodiesThatAreNoRequests) {
  const std::string deep(100'000, '[');
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += "\"k" + std::to_string(i) + "\":0,";
  keys += "\"z\":0}";
  const struct {
    std::string body;
    const char* message;
  } cases[] = {{"", "no JSON"},
               {"{", "no JSON at byte"},
               {"[]", "expected an object"},
               {"\"x\"", "expected an object"},
               {deep, "nested deeper"},
               {keys, "too many keys"},
               {"{\"a\":1e999x}", "no JSON"},
               {"\xff\xfe", "no JSON"},
               {"{\"messages\":\"\xff\"}", "no JSON"}};
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                           "/tokenize", "/detokenize"}) {
    for (const auto& c : cases) {
      Client client(server_->port());
      const Reply reply = client.ask("POST", path, c.body);
      EXPECT_EQ(reply.status, 400) << path << c.body.substr(0, 30);
      const json error = reply.json()["error"];
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.message)) << path;
      EXPECT_EQ(reply.json().contains("type"), std::string(path) == "/v1/messages");
      EXPECT_EQ(client.ask("GET", "/health").status, 200) << "the connection goes on";
    }
  }
}

TEST_F(Api, APromptOverTheContextIsAKnown400) {
  const std::string text(5000, 'x');
  const Reply openai = post("/v1/chat/completions",
                            chat({{"messages", {{{"role", "user"}, {"content", text}}}}, {"stream", true}}));
  EXPECT_EQ(openai.status, 400);
  json error = openai.json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["type"], "exceed_context_size_error");
  EXPECT_EQ(error["n_ctx"], 4096);
  EXPECT_GT(error["n_prompt_tokens"], 5000);
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("maximum context length is 4096 tokens"));
  const Reply anthropic =
      post("/v1/messages", {{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", text}}}}});
  EXPECT_EQ(anthropic.status, 400);
  EXPECT_EQ(anthropic.json()["error"]["type"], "invalid_request_error");
  EXPECT_THAT(anthropic.json()["error"]["message"].get<std::string>(),
              AllOf(StartsWith("prompt is too long: 50"), HasSubstr(" > 4095 maximum")));
}

TEST_F(Api, CompletionsOfTextAndTokens) {
  say(" upon a time");
  const json answer =
      post("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 100}, {"echo", true}}).json();
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "Once upon a time");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  say(" upon a time, and so on, and on");
  EXPECT_EQ(post("/v1/completions", {{"prompt", "Once"}}).json()["choices"][0]["text"], " upon a time, an")
      << "16 tokens";
  say("ab");
  const json many = post("/v1/completions", {{"prompt", {"x", "yy"}}, {"n", 2}, {"logprobs", 1}}).json();
  ASSERT_EQ(many["choices"].size(), 4u);
  EXPECT_EQ(many["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(many["choices"][3]["text"], "ab");
  EXPECT_EQ(many["choices"][3]["logprobs"]["tokens"], json({"a", "b"}));
  EXPECT_EQ(many["choices"][3]["logprobs"]["text_offset"], json({0, 1}));
  EXPECT_EQ(many["choices"][3]["logprobs"]["top_logprobs"][0].size(), 1u);
  say("ab");
  std::string text;
  const auto list =
      chunks(post("/v1/completions", {{"prompt", {72, 105}}, {"stream", true}, {"echo", true}}));
  for (const json& chunk : list) text += chunk["choices"][0]["text"];
  EXPECT_EQ(text, "Hiab");
  EXPECT_EQ(list.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(post("/v1/completions", {{"prompt", {72, 999}}}).json()["error"]["param"], "prompt[1]");
  EXPECT_EQ(post("/v1/completions", {{"prompt", ""}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"suffix", "y"}}).json()["error"]["param"], "suffix");
}

TEST_F(Api, EchoesPromptsWithTheirLogprobs) {
  // "ü" has two tokens here; offsets are of characters. The model foretells the prompt but for its dot.
  say("\xC3\xBC!\xC3\xA9n");
  json body = {{"prompt", "H\xC3\xBC."}, {"max_tokens", 9}, {"echo", true}, {"logprobs", 2}};
  const json one = post("/v1/completions", body).json();
  const json choice = one["choices"][0];
  EXPECT_EQ(choice["text"], "H\xC3\xBC.\xC3\xA9n");
  const json& listed = choice["logprobs"];
  EXPECT_EQ(listed["text_offset"], json({0, 1, 1, 2, 3, 3, 4, 5})) << "the end token too";
  ASSERT_EQ(listed["tokens"].size(), 8u);
  EXPECT_EQ(listed["tokens"][0], "H");
  EXPECT_EQ(listed["tokens"][3], ".");
  EXPECT_EQ(listed["tokens"][6], "n");
  EXPECT_EQ(listed["tokens"][7], "<|endoftext|>");
  EXPECT_EQ(one["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(one["usage"]["completion_tokens"], 4);
  EXPECT_EQ(listed["token_logprobs"][0], nullptr);
  EXPECT_EQ(listed["top_logprobs"][0], nullptr);
  for (size_t i = 1; i < 8; ++i) {
    const double own = listed["token_logprobs"][i].get<double>();
    double most = -INFINITY;
    for (const json& other : listed["top_logprobs"][i]) most = std::max(most, other.get<double>());
    EXPECT_LE(own, most);
    EXPECT_NEAR(own, i == 3 ? -50 : 0, 1e-3);
    EXPECT_EQ(listed["top_logprobs"][i][listed["tokens"][i].get<std::string>()], own) << "its own is there";
  }
  // Whatever is cached, with nothing or one token written, several prompts at once, whole and streamed.
  body["prompt"] = {"H\xC3\xBC.", "abc"};
  for (const int written : {0, 1, 0}) {
    body["max_tokens"] = written;
    for (const bool stream : {false, true}) {
      body["stream"] = stream;
      say("..xx");
      std::map<int, json> tokens;
      std::map<int, std::string> texts;
      const Reply reply = post("/v1/completions", body);
      for (const json& part : stream ? chunks(reply) : std::vector<json>{reply.json()})
        for (const json& of : part["choices"]) {
          texts[of["index"]] += of["text"];
          if (of["logprobs"].is_null()) continue;
          EXPECT_EQ(of["logprobs"]["tokens"].size(), of["logprobs"]["token_logprobs"].size());
          for (const json& token : of["logprobs"]["tokens"]) tokens[of["index"]].push_back(token);
        }
      const std::string rest = written == 0 ? "" : "x";
      EXPECT_EQ(texts[0], "H\xC3\xBC." + rest);
      EXPECT_EQ(texts[1], "abc" + rest);
      EXPECT_EQ(tokens[0].size(), 4u + rest.size());
      EXPECT_EQ(tokens[1], written == 0 ? json({"a", "b", "c"}) : json({"a", "b", "c", "x"}));
    }
  }
  body = {{"prompt", {97}}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}};
  EXPECT_EQ(post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"],
            json::array({nullptr}));
  body["prompt"] = "";
  EXPECT_EQ(post("/v1/completions", body).status, 400);
  body = {{"prompt", std::string(4000, 'x')}, {"n", 8}, {"echo", true}, {"logprobs", 20}};
  EXPECT_EQ(post("/v1/completions", body).json()["error"]["param"], "logprobs") << "704,000 of them";
}

TEST_F(Api, LogprobsOfCompletionsAreOfTheText) {
  say("one STOP two");
  const json body = {{"prompt", "x"}, {"stop", "STOP"}, {"logprobs", 0}};
  const json choice = post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["text"], "one ");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"o", "n", "e", " "}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({0, 1, 2, 3}));
  say("ab");
  EXPECT_EQ(
      post("/v1/completions", {{"prompt", "x"}, {"logprobs", 0}}).json()["choices"][0]["logprobs"]["tokens"],
      json({"a", "b"}));
}

TEST_F(Api, PenaltiesCountWhatWasWritten) {
  // The parrot's next byte leads by 50. A penalty of 60 on each earlier one lets the lowest id win where a
  // byte comes again; the prompt's do not count.
  say("abcab");
  json body = {{"prompt", "abc"}, {"max_tokens", 5}, {"presence_penalty", 60}};
  EXPECT_EQ(post("/v1/completions", body).json()["choices"][0]["text"], std::string("abc\0\1", 5));
  say(std::string(80, 'a'));
  body = {{"prompt", "a"}, {"max_tokens", 80}, {"frequency_penalty", 0.7}};
  const std::string text = post("/v1/completions", body).json()["choices"][0]["text"];
  EXPECT_EQ(text.substr(0, 72), std::string(72, 'a')) << "50 / 0.7 times it still leads, beyond any window";
  EXPECT_NE(text[72], 'a');
}

TEST_F(Api, TextAndTokens) {
  const json tokens = post("/tokenize", {{"content", "Hi \xE6\xB0\xB4"}}).json();
  EXPECT_EQ(tokens["tokens"], json({72, 105, 32, 0xE6, 0xB0, 0xB4}));
  EXPECT_EQ(tokens["count"], 6);
  EXPECT_EQ(post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["content"], "Hi \xE6\xB0\xB4");
  EXPECT_EQ(post("/detokenize", {{"tokens", {0xE6}}}).json()["content"], "\xEF\xBF\xBD");
  EXPECT_EQ(post("/tokenize", {{"content", "A"}, {"with_pieces", true}}).json()["tokens"][0],
            (json{{"id", 65}, {"piece", "A"}}));
  EXPECT_EQ(post("/tokenize", {{"content", "<|endoftext|>"}}).json()["tokens"], json({256}));
  EXPECT_EQ(post("/detokenize", {{"tokens", {999}}}).json()["error"]["param"], "tokens[0]");
  // As vLLM's clients ask.
  EXPECT_EQ(post("/tokenize", {{"prompt", "A"}, {"add_special_tokens", false}}).json()["tokens"], json({65}));
  EXPECT_EQ(post("/detokenize", {{"tokens", {65}}}).json()["prompt"], "A");
  const json info = get("/tokenizer_info").json();
  for (const char* key : {"bos_token", "eos_token", "chat_template"}) ASSERT_TRUE(info.contains(key)) << key;
  EXPECT_EQ(info["vocab_size"], get("/v1/models").json()["data"][0]["meta"]["n_vocab"]);
  const json prompt = post("/apply-template", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}).json();
  EXPECT_EQ(prompt["prompt"], "[gMASK]<sop><|user|>Hi<|assistant|><think>");
}

TEST_F(Api, ForgetsCachedPromptsWhenAsked) {
  const auto cached = [&] {
    say("</think>x");
    const json body = chat({{"messages", {{{"role", "user"}, {"content", std::string(500, 'a')}}}}});
    return post("/v1/chat/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GE(cached(), 448);
  const json there = get("/cache").json();
  EXPECT_EQ(there["page_tokens"], 64);
  EXPECT_GE(there["device"]["pages_cached"], 7);
  EXPECT_FALSE(there.contains("memory") || there.contains("disk")) << "the device alone";
  const Reply cleared = post("/cache/clear", json::object());
  EXPECT_EQ(cleared.status, 200);
  EXPECT_EQ(cleared.json()["status"], "ok");
  EXPECT_EQ(get("/cache").json()["device"]["pages_cached"], 0);
  EXPECT_EQ(cached(), 0);
}

TEST_F(Api, TellsWhatRunsHere) {
  const json models = get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "parrot");
  EXPECT_EQ(models["data"][0]["meta"]["n_ctx"], 4096);
  EXPECT_EQ(get("/v1/models/parrot").json()["id"], "parrot");
  EXPECT_EQ(get("/props").json()["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_THAT(get("/props").body, HasSubstr("\"top_p\":0.95,"));
  EXPECT_EQ(get("/slots").json().size(), 8u);
  for (const char* probe : {"/health", "/ready", "/live"})
    EXPECT_EQ(get(probe).json()["status"], "ok") << probe;
  EXPECT_EQ(get("/").status, 200);
  say("</think>x");
  post("/v1/chat/completions", chat());
  const Reply metrics = get("/metrics");
  EXPECT_THAT(metrics.header("content-type"), StartsWith("text/plain; version=0.0.4"));
  for (const char* line :
       {"sluice_up 1\n", "# TYPE sluice_time_to_first_token_seconds histogram\n",
        "sluice_time_to_first_token_seconds_bucket{le=\"+Inf\"} ", "sluice_inter_token_seconds_sum ",
        "sluice_requests_running ", "sluice_cache_pages_free ", "sluice_prompt_cached_tokens_total ",
        "sluice_finished_total{reason=\"end_token\"} "})
    EXPECT_THAT(metrics.body, HasSubstr(line));
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/nowhere").json()["error"]["type"], "not_found_error");
  EXPECT_EQ(get("/v1/embeddings").status, 404);  // not a 5xx, which clients would try again
  const Reply wrong = get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST");
}

TEST_F(Api, TheSecondPromptFindsTheFirstInTheCache) {
  json body = chat({{"messages", {{{"role", "user"}, {"content", std::string(500, 'y')}}}}});
  say("</think>x");
  post("/v1/chat/completions", body);
  say("</think>x");
  const json usage = post("/v1/chat/completions", body).json()["usage"];
  EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"], 448);
}

TEST(ApiAccess, KeysOriginsAndLoading) {
  ServerOptions options = test::quick_server();
  options.api_keys = {"secret", "other"};
  options.origins = {"http://chat.example"};
  Server server(options);  // without a model
  Client client(server.port());
  EXPECT_EQ(client.ask("GET", "/health").status, 503);
  EXPECT_EQ(client.ask("GET", "/ready").status, 503);
  EXPECT_EQ(client.ask("GET", "/live").status, 200) << "it loads, and is not to be started anew";
  EXPECT_EQ(client.ask("GET", "/metrics", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(client.ask("GET", "/v1/models").status, 503);
  const Reply none = Client(server.port()).post("/v1/chat/completions", {});
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.json()["error"]["code"], "invalid_api_key");
  Client anthropic(server.port());
  EXPECT_EQ(anthropic.post("/v1/messages", {}, "x-api-key: wrong\r\n").json()["error"]["type"],
            "authentication_error");
  for (const char* key :
       {"Authorization: Bearer other\r\n", "authorization: bearer secret\r\n", "X-Api-Key: secret\r\n"})
    EXPECT_EQ(Client(server.port()).post("/v1/messages", {}, key).status, 503) << "let in; still loading";
  for (const char* key : {"Authorization: Bearer \r\n", "Authorization: Bearer secre\r\n",
                          "X-Api-Key: secrets\r\n", "Authorization: Basic secret\r\n"})
    EXPECT_EQ(Client(server.port()).post("/v1/messages", {}, key).status, 401) << key;
  const Reply preflight = client.ask(
      "OPTIONS", "/v1/chat/completions", "",
      "Origin: http://chat.example\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "http://chat.example");
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization, x-stainless-os");
  EXPECT_EQ(client.ask("GET", "/health", "", "Origin: http://chat.example\r\n")
                .header("access-control-allow-origin"),
            "http://chat.example");
  EXPECT_EQ(client.ask("GET", "/health", "", "Origin: http://evil.example\r\n").status, 403);
}

TEST(ApiAccess, WithoutKeysOnlyLocalPagesMayAsk) {
  Server server(test::quick_server());
  const auto status = [&](const std::string& host, const std::string& origin) {
    Client client(server.port());
    client.send("GET /metrics HTTP/1.1\r\nHost: " + host + "\r\nOrigin: " + origin + "\r\n\r\n");
    return client.read_reply().status;
  };
  EXPECT_EQ(status("localhost:8080", "http://localhost:8080"), 200);
  EXPECT_EQ(status("127.0.0.1:8080", "http://127.0.0.1:8080"), 200);
  EXPECT_EQ(status("localhost:8080", "http://evil.example"), 403);
  EXPECT_EQ(status("localhost:8080", "null"), 403);
  EXPECT_EQ(status("evil.example:8080", "http://evil.example:8080"), 403)
      << "a name that was made to point here";
}

TEST(ApiEnds, EveryStreamEndsWithAReason) {
  ParrotServer server;
  server.parrot.say(std::string(100'000, 'x'), 2ms);
  const json body = {
      {"stream", true}, {"max_tokens", 3000}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  Client openai(server.port()), anthropic(server.port()), responses(server.port());
  openai.send(Client::request("POST", "/v1/chat/completions", body.dump()));
  anthropic.send(Client::request("POST", "/v1/messages", body.dump()));
  responses.send(Client::request("POST", "/v1/responses", R"({"input":"x","stream":true})"));
  for (Client* client : {&openai, &anthropic, &responses}) EXPECT_EQ(client->read_head().status, 200);
  server.engine().stop();
  const auto rest = [](Client& client) {
    Reply reply;
    while (client.read_chunk(reply.body)) {
    }
    return reply.events().empty() ? "" : reply.events().back();
  };
  EXPECT_EQ(json::parse(rest(openai))["error"]["type"], "unavailable_error");
  EXPECT_THAT(rest(anthropic), StartsWith("error|{\"type\":\"error\""));
  EXPECT_THAT(rest(responses), StartsWith("response.failed|"));
  EXPECT_EQ(Client(server.port()).post("/v1/messages", body).json()["error"]["type"], "overloaded_error");
}

TEST(ApiEnds, AClientThatLeavesEndsItsRequest) {
  ParrotServer server;
  server.parrot.say(std::string(100'000, 'x'), 4ms);  // longer than anybody is held up
  const json body = {{"max_tokens", 3000}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  for (const bool stream : {false, true}) {
    Client client(server.port());
    json request = body;
    request["stream"] = stream;
    request["n"] = 3;
    client.send(Client::request("POST", "/v1/chat/completions", request.dump()));
    for (int i = 0; i < 1000 && server.engine().stats().running != 3; ++i) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(server.engine().stats().running, 3);
    if (stream)
      client.reset();
    else
      client.close();
    for (int i = 0; i < 1000 && server.engine().stats().running != 0; ++i) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(server.engine().stats().running, 0);
  }
  EXPECT_EQ(server.engine().stats().used_pages, 0);
}

TEST(ApiEnds, ALongPromptKeepsItsClientAwake) {
  ServerOptions options = test::quick_server();
  options.http.ping_interval = 20ms;
  ParrotServer server(options);
  server.parrot.say("</think>x");
  const json body = {
      {"stream", true}, {"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  for (const std::string path : {"/v1/chat/completions", "/v1/messages"}) {
    server.parrot.hold = true;
    Client client(server.port());
    client.send(Client::request("POST", path, body.dump()));
    Reply reply = client.read_head();
    const std::string ping = path == "/v1/messages" ? "event: ping\n" : ": ping\n";
    while (reply.body.find(ping) == std::string::npos && client.read_chunk(reply.body)) {
    }
    EXPECT_THAT(reply.body, HasSubstr(ping));
    server.parrot.hold = false;
    while (client.read_chunk(reply.body)) {
    }
    EXPECT_THAT(reply.body, HasSubstr(path == "/v1/messages" ? "message_stop" : "[DONE]"));
  }
}

TEST(ApiEnds, AFullQueueIsRefused) {
  engine::EngineOptions engine = ParrotServer::small();
  engine.max_sequences = 1;
  engine.max_waiting = 1;
  ParrotServer server(test::quick_server(), engine);
  server.parrot.hold = true;
  const json body = {{"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  std::vector<Client> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(Client::request("POST", "/v1/chat/completions", body.dump()));
  }
  // One runs and one waits, unless the others came before the first was in the batch.
  const auto answered = [&] {
    return std::count_if(clients.begin(), clients.end(), [](const Client& one) { return one.readable(); });
  };
  for (int i = 0; i < 6000 && answered() < 4; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_THAT(answered(), AnyOf(4, 5));
  for (Client& client : clients) {
    if (!client.readable()) continue;
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_NE(reply.header("Retry-After"), "");
  }
  server.parrot.hold = false;
}

}  // namespace
}  // namespace sluice::server
