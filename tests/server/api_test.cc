// The APIs over a socket, with a model that says what the test tells it to: what of its text arrives where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/parrot.h"
#include "server/recorded.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Client;
using test::ParrotServer;
using test::Reply;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const json kTools = json::parse(R"([{"type":"function","function":{"name":"weather","description":"of a city",
  "parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
  {"type":"function","function":{"name":"clock","parameters":{"type":"object","properties":{}}}}])");
const std::string kCalls =
    "Let me see.</think>I look it up.<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>clock</tool_call>";

class Api : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ParrotServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static json chat(json more = json::object()) {
    json body = {{"model", "any"}, {"messages", {{{"role", "user"}, {"content", "Hello?"}}}}};
    body.update(more);
    return body;
  }
  Reply post(const std::string& path, const json& body, const std::string& headers = "") {
    return Client(server_->port()).post(path, body, headers);
  }
  Reply get(const std::string& path) { return Client(server_->port()).ask("GET", path); }
  void say(const std::string& reply) { server_->parrot.say(reply); }
  /// The data of a stream's events; the last one must be [DONE].
  static std::vector<json> chunks(const Reply& reply) {
    std::vector<json> list;
    EXPECT_EQ(reply.status, 200);
    auto events = reply.events();
    if (events.empty() || events.back() != "[DONE]")
      ADD_FAILURE() << reply.body;
    else
      events.pop_back();
    for (const std::string& event : events) list.push_back(json::parse(event));
    return list;
  }

  static inline ParrotServer* server_ = nullptr;
};

TEST_F(Api, ChatAnswersWhole) {
  say("I think.</think>Hello, you!");
  const Reply reply = post("/v1/chat/completions", chat());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = reply.json();
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["model"], "parrot");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello, you!");
  EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "I think.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["logprobs"], nullptr);
  const json usage = answer["usage"];
  EXPECT_EQ(usage["completion_tokens"], 28);  // 27 bytes and the end token
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 16);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 28);
  EXPECT_EQ(answer["timings"]["predicted_n"], 28);
  EXPECT_NE(reply.header("x-request-id"), "");
}

TEST_F(Api, ChatStreams) {
  say("I think.</think>Hello, you! \xF0\x9F\xA6\x8A");
  const auto list = chunks(
      post("/v1/chat/completions", chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  ASSERT_GE(list.size(), 4u);
  std::string content, reasoning;
  for (size_t i = 0; i + 2 < list.size(); ++i) {
    EXPECT_EQ(list[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(list[i]["id"], list[0]["id"]);
    const json& delta = list[i]["choices"][0]["delta"];
    EXPECT_EQ(delta.contains("role"), i == 0);
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    EXPECT_EQ(list[i]["choices"][0]["finish_reason"], nullptr);
    EXPECT_FALSE(list[i].contains("usage"));
  }
  EXPECT_EQ(content, "Hello, you! \xF0\x9F\xA6\x8A");
  EXPECT_EQ(reasoning, "I think.");
  EXPECT_EQ(list[list.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(list.back()["choices"], json::array());
  EXPECT_GT(list.back()["usage"]["prompt_tokens"], 10);
}

TEST_F(Api, ChatCallsTools) {
  say(kCalls);
  const json message = post("/v1/chat/completions", chat({{"tools", kTools}})).json()["choices"][0];
  EXPECT_EQ(message["finish_reason"], "tool_calls");
  EXPECT_EQ(message["message"]["content"], "I look it up.");
  EXPECT_EQ(message["message"]["reasoning_content"], "Let me see.");
  const json calls = message["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"]["name"], "weather");
  EXPECT_EQ(json::parse(calls[0]["function"]["arguments"].get<std::string>()),
            (json{{"city", "Bern"}, {"days", 3}}));
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);

  say(kCalls);
  const auto list = chunks(post("/v1/chat/completions", chat({{"tools", kTools}, {"stream", true}})));
  std::vector<json> deltas;
  for (const json& chunk : list)
    for (const json& call : chunk["choices"][0]["delta"].value("tool_calls", json::array()))
      deltas.push_back(call);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0]["index"], 0);
  EXPECT_EQ(deltas[1]["index"], 1);
  EXPECT_EQ(deltas[0]["function"]["name"], "weather");
  EXPECT_EQ(deltas[1]["function"]["arguments"], "{}");
  EXPECT_EQ(list.back()["choices"][0]["finish_reason"], "tool_calls");

  say(kCalls);
  const json one =
      post("/v1/chat/completions", chat({{"tools", kTools}, {"parallel_tool_calls", false}})).json();
  EXPECT_EQ(one["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(one["choices"][0]["finish_reason"], "tool_calls");

  say(kCalls);
  const json none = post("/v1/chat/completions", chat({{"tools", kTools}, {"tool_choice", "none"}})).json();
  EXPECT_FALSE(none["choices"][0]["message"].contains("tool_calls"));
  EXPECT_THAT(none["choices"][0]["message"]["content"].get<std::string>(), HasSubstr("<tool_call>weather"));
}

TEST_F(Api, ChatStopsWhereAsked) {
  say("</think>one two three");
  json choice = post("/v1/chat/completions", chat({{"stop", {"two", "never"}}})).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "one");
  EXPECT_EQ(choice["finish_reason"], "stop");
  say("</think>one two three");
  choice = post("/v1/chat/completions", chat({{"max_tokens", 11}})).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "one");
  EXPECT_EQ(choice["finish_reason"], "length");
  say("</think>one two three");
  choice = post("/v1/chat/completions", chat({{"max_completion_tokens", 8}, {"max_tokens", 11}}))
               .json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "");
}

TEST_F(Api, ChatSwitchesThinkingOff) {
  for (const json& way :
       {json{{"chat_template_kwargs", {{"enable_thinking", false}}}}, json{{"reasoning_effort", "none"}},
        json{{"enable_thinking", false}}, json{{"thinking", {{"type", "disabled"}}}}}) {
    say("Straight away.");
    const json message = post("/v1/chat/completions", chat(way)).json()["choices"][0]["message"];
    EXPECT_EQ(message["content"], "Straight away.") << way;
    EXPECT_FALSE(message.contains("reasoning_content"));
  }
}

TEST_F(Api, ChatGivesSeveralChoicesAndLogprobs) {
  say("</think>ab");
  const json answer = post("/v1/chat/completions",
                           chat({{"n", 3}, {"logprobs", true}, {"top_logprobs", 2}, {"max_tokens", 10}}))
                          .json();
  ASSERT_EQ(answer["choices"].size(), 3u) << answer;
  for (int i = 0; i < 3; ++i) {
    const json choice = answer["choices"][static_cast<size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["message"]["content"], "ab");
    const json tokens = choice["logprobs"]["content"];
    ASSERT_EQ(tokens.size(), 10u);
    EXPECT_EQ(tokens[8]["token"], "a");
    EXPECT_EQ(tokens[8]["bytes"], json({97}));
    EXPECT_LT(tokens[8]["logprob"], 0.001);
    ASSERT_EQ(tokens[8]["top_logprobs"].size(), 2u);
    EXPECT_EQ(tokens[8]["top_logprobs"][0]["token"], "a");
  }
  say("</think>ab");
  std::string text;
  for (const json& chunk : chunks(post("/v1/chat/completions", chat({{"stream", true}, {"logprobs", true}}))))
    if (const json& logprobs = chunk["choices"][0]["logprobs"]; !logprobs.is_null())
      for (const json& token : logprobs["content"]) text += token["token"];
  EXPECT_EQ(text, "</think>ab");
  say("</think>ab");
  const json biased =
      post("/v1/chat/completions", chat({{"logit_bias", {{"97", -100}, {"120", 60}}}, {"max_tokens", 9}}))
          .json();
  EXPECT_EQ(biased["choices"][0]["message"]["content"], "")
      << "x wins everywhere: nothing ever leaves thinking";
  EXPECT_THAT(biased["choices"][0]["message"]["reasoning_content"].get<std::string>(),
              HasSubstr("xxxxxxxxx"));
}

TEST_F(Api, ChatTakesWhatClientsSend) {
  const json conversations[] = {
      json::parse(
          R"([{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi"}]}])"),
      json::parse(
          R"([{"role":"user","content":"w?"},{"role":"assistant","content":null,"reasoning_content":"hm",
        "tool_calls":[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bern\"}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"sun"}])"),
      json::parse(
          R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"c","refusal":null},
        {"role":"user","content":"d","name":"me"}])")};
  for (const json& messages : conversations) {
    say("</think>Yes.");
    const Reply reply = post("/v1/chat/completions", chat({{"messages", messages},
                                                           {"tools", kTools},
                                                           {"user", "u"},
                                                           {"store", false},
                                                           {"metadata", nullptr},
                                                           {"temperature", 0.5},
                                                           {"top_p", 0.9},
                                                           {"top_k", 20},
                                                           {"min_p", 0.01},
                                                           {"seed", -7},
                                                           {"presence_penalty", 0},
                                                           {"frequency_penalty", 0},
                                                           {"repetition_penalty", 1.0},
                                                           {"response_format", {{"type", "text"}}},
                                                           {"stream_options", nullptr}}));
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
}

TEST_F(Api, RecordedRequestsAreAnswered) {
  for (const test::RecordedRequest& request : test::kRecordedRequests) {
    say("Hm.</think>Yes.");
    const Reply reply = Client(server_->port()).ask("POST", request.path, request.body, request.headers);
    EXPECT_EQ(reply.status, 200) << request.client << ": " << reply.body;
    const bool counts = std::string_view(request.path).find("count") != std::string_view::npos;
    EXPECT_THAT(reply.body, HasSubstr(counts ? "input_tokens" : "\"Y\"")) << request.client;
  }
}

TEST_F(Api, WrongFieldsAreNamed) {
  const struct {
    json more;
    const char *param, *message;
  } cases[] = {
      {{{"messages", 1}}, "messages", "messages: expected an array, not a number"},
      {{{"messages", json::array()}}, "messages", "at least one message"},
      {{{"messages", {1}}}, "messages[0]", ""},
      {{{"messages", {{{"role", "alien"}, {"content", "x"}}}}}, "messages[0].role", ""},
      {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content", ""},
      {{{"temperature", "hot"}}, "temperature", "expected a number, not a string"},
      {{{"temperature", -1}}, "temperature", "-1, expected 0 to"},
      {{{"top_p", 2}}, "top_p", ""},
      {{{"max_tokens", 1.5}}, "max_tokens", "whole number"},
      {{{"max_tokens", 1e30}}, "max_tokens", ""},
      {{{"n", 0}}, "n", ""},
      {{{"stop", {1}}}, "stop[0]", "expected a string"},
      {{{"stream", "yes"}}, "stream", "true or false"},
      {{{"logit_bias", {{"999", 1}}}}, "logit_bias", "token id from 0 to 256"},
      {{{"logit_bias", {{"1", "x"}}}}, "logit_bias", ""},
      {{{"top_logprobs", 3}}, "top_logprobs", "needs logprobs"},
      {{{"top_logprobs", 99}, {"logprobs", true}}, "top_logprobs", ""},
      {{{"tools", {{{"type", "function"}}}}}, "tools[0]", ""},
      {{{"tool_choice", "required"}}, "tool_choice", "no tools"},
      {{{"tool_choice", {{"type", "function"}, {"function", {{"name", "nope"}}}}}, {"tools", kTools}},
       "tool_choice",
       "\"nope\""},
      {{{"tool_choice", "sometimes"}}, "tool_choice", ""},
      {{{"response_format", {{"type", "xml"}}}}, "response_format.type", "text, json_object, json_schema"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}}}}}},
       "response_format.json_schema.schema",
       "is missing"},
      {{{"functions", json::array()}}, "functions", "use tools"},
      {{{"tempratur", 1}}, "tempratur", "knows no such field"},
      {{{"stream_options", {{"nope", 1}}}}, "stream_options.nope", ""},
      {{{"chat_template_kwargs", 1}}, "chat_template_kwargs", ""}};
  for (const auto& c : cases) {
    const Reply reply = post("/v1/chat/completions", chat(c.more));
    EXPECT_EQ(reply.status, 400) << c.more << reply.body;
    const json error = reply.json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], c.param) << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.message));
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
               {"{\"a\":1e999}", "no JSON"},
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

TEST_F(Api, MessagesAnswerWhole) {
  say("Straight.");
  const Reply reply =
      post("/v1/messages?beta=true",
           json::parse(R"({"model":"claude-x","max_tokens":50,"system":[{"type":"text","text":"Be brief.",
                             "cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text",
                             "text":"Hi"}]}],"metadata":{"user_id":"u"},"context_management":{"edits":[]},"unknown":1})"),
           "anthropic-version: 2023-06-01\r\nanthropic-beta: x,y\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = reply.json();
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["content"], json::parse(R"([{"type":"text","text":"Straight."}])"))
      << "no thinking unless asked for";
  EXPECT_EQ(answer["stop_reason"], "end_turn");
  EXPECT_EQ(answer["stop_sequence"], nullptr);
  EXPECT_EQ(answer["usage"]["output_tokens"], 10);
  say("one two");
  const json stopped = post("/v1/messages", {{"max_tokens", 50},
                                             {"stop_sequences", {" two"}},
                                             {"messages", {{{"role", "user"}, {"content", "x"}}}}})
                           .json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], " two");
  say("one two");
  EXPECT_EQ(post("/v1/messages", {{"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "x"}}}}})
                .json()["stop_reason"],
            "max_tokens");
}

TEST_F(Api, MessagesStreamBlocks) {
  say(kCalls);
  const json body =
      json::parse(R"({"max_tokens":500,"stream":true,"thinking":{"type":"enabled","budget_tokens":1024},
    "tools":[{"name":"weather","description":"of a city","input_schema":{"type":"object","properties":{"city":{"type":"string"},
    "days":{"type":"integer"}}}},{"name":"clock","input_schema":{"type":"object"}}],
    "messages":[{"role":"user","content":"w?"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},
    {"type":"text","text":"a"},{"type":"tool_use","id":"t1","name":"weather","input":{"city":"Rom"}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"rain"}]},
    {"type":"text","text":"And Bern?"}]}]})");
  const Reply reply = post("/v1/messages", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::vector<std::string> names;
  json blocks = json::array(), last;
  std::string open;
  for (const std::string& event : reply.events()) {
    const size_t bar = event.find('|');
    const json data = json::parse(event.substr(bar + 1));
    const std::string type = data["type"];
    EXPECT_EQ(event.substr(0, bar), type);
    if (type == "ping") continue;
    if (names.empty() || names.back() != type) names.push_back(type);
    if (type == "content_block_start") {
      EXPECT_EQ(data["index"], blocks.size());
      blocks.push_back(data["content_block"]);
    }
    if (type == "content_block_delta") {
      const json& delta = data["delta"];
      EXPECT_EQ(data["index"], blocks.size() - 1);
      json& block = blocks.back();
      if (delta["type"] == "text_delta")
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      if (delta["type"] == "thinking_delta")
        block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      if (delta["type"] == "input_json_delta")
        block["input"] = json::parse(delta["partial_json"].get<std::string>());
    }
    if (type == "message_delta") last = data;
  }
  EXPECT_EQ(names.front(), "message_start");
  EXPECT_EQ(names.back(), "message_stop");
  ASSERT_EQ(blocks.size(), 4u) << blocks;
  EXPECT_EQ(blocks[0]["thinking"], "Let me see.");
  EXPECT_EQ(blocks[1]["text"], "I look it up.");
  EXPECT_EQ(blocks[2]["name"], "weather");
  EXPECT_EQ(blocks[2]["input"], (json{{"city", "Bern"}, {"days", 3}}));
  EXPECT_EQ(blocks[3]["input"], json::object());
  EXPECT_EQ(last["delta"]["stop_reason"], "tool_use");
  EXPECT_GT(last["usage"]["output_tokens"], 50);
}

TEST_F(Api, MessagesErrorsAndCounts) {
  const struct {
    json body;
    const char* message;
  } cases[] = {{{{"messages", {{{"role", "user"}, {"content", "x"}}}}}, "max_tokens: is missing"},
               {{{"max_tokens", 5}}, "messages: expected"},
               {{{"max_tokens", 5}, {"messages", {{{"role", "robot"}, {"content", "x"}}}}},
                "messages[0].role: \"robot\""},
               {{{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}},
                "messages[0].content[0].type: \"image\""},
               {{{"max_tokens", 5},
                 {"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}},
                 {"messages", {{{"role", "user"}, {"content", "x"}}}}},
                "tools[0].type: \"web_search_20250305\""}};
  for (const auto& c : cases) {
    const Reply reply = post("/v1/messages", c.body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["type"], "error");
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
    EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(c.message));
  }
  const json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  const Reply counted = post("/v1/messages/count_tokens", body);
  ASSERT_EQ(counted.status, 200) << counted.body;
  say("x");
  json with_limit = body;
  with_limit["max_tokens"] = 1;
  const json usage = post("/v1/messages", with_limit).json()["usage"];
  EXPECT_EQ(counted.json()["input_tokens"],
            usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
}

// The line changes with every request; with it in the prompt no prefix would ever be found again.
TEST_F(Api, TheBillingHeaderDoesNotReachThePrompt) {
  const auto tokens = [&](const std::string& text) {
    const json block = {{"type", "text"}, {"text", text}}, rest = {{"type", "text"}, {"text", "Be brief."}};
    return post("/v1/messages/count_tokens",
                {{"system", {block, rest}}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}})
        .json()["input_tokens"];
  };
  const json none = post("/v1/messages/count_tokens",
                         {{"system", "Be brief."}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}})
                        .json()["input_tokens"];
  EXPECT_EQ(tokens("x-anthropic-billing-header: cc_version=2.1.7; cc_entrypoint=cli; cch=0a1b2;"), none);
  EXPECT_EQ(tokens("x-anthropic-billing-header: cc_version=2.1.7; cch=fffff;\n"), none);
  EXPECT_NE(tokens("something else"), none);
}

TEST_F(Api, ResponsesAnswerWhole) {
  say(kCalls);
  json tools = json::array();
  for (json tool : kTools) {
    json flat = tool["function"];
    flat["type"] = "function";
    tools.push_back(flat);
  }
  const Reply reply = post("/v1/responses", {{"model", "x"},
                                             {"input", "What is the weather?"},
                                             {"instructions", "Be brief."},
                                             {"tools", tools},
                                             {"store", false},
                                             {"temperature", 0.3}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = reply.json();
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["temperature"], 0.3);
  ASSERT_EQ(answer["output"].size(), 4u) << answer["output"];
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "I look it up.");
  EXPECT_EQ(answer["output"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(answer["output"][2]["type"], "function_call");
  EXPECT_EQ(json::parse(answer["output"][2]["arguments"].get<std::string>())["city"], "Bern");
  EXPECT_GT(answer["usage"]["output_tokens"], 50);
  // The whole of it comes back as input.
  json input = json::array(
      {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "What is the weather?"}}}}}});
  for (const json& item : answer["output"]) input.push_back(item);
  for (const size_t i : {2, 3})
    input.push_back(
        {{"type", "function_call_output"}, {"call_id", answer["output"][i]["call_id"]}, {"output", "sun"}});
  say("</think>Sunny.");
  const json next =
      post("/v1/responses", {{"input", input}, {"tools", tools}, {"max_output_tokens", 10}}).json();
  EXPECT_EQ(next["status"], "incomplete") << next;
  EXPECT_EQ(next["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(next["output"][0]["content"][0]["text"], "Su");
  EXPECT_EQ(post("/v1/responses", {{"input", "x"}, {"previous_response_id", "r"}}).json()["error"]["param"],
            "previous_response_id");
}

TEST_F(Api, ResponsesStream) {
  say("Hm.</think>Hello!<tool_call>clock</tool_call>");
  const Reply reply =
      post("/v1/responses",
           {{"input", "x"}, {"stream", true}, {"tools", {{{"type", "function"}, {"name", "clock"}}}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::vector<std::string> types;
  std::string text;
  int64_t number = 0;
  json last;
  for (const std::string& event : reply.events()) {
    const size_t bar = event.find('|');
    last = json::parse(event.substr(bar + 1));
    EXPECT_EQ(last["type"], event.substr(0, bar));
    EXPECT_EQ(last["sequence_number"], number++);
    if (types.empty() || types.back() != last["type"]) types.push_back(last["type"]);
    if (last["type"] == "response.output_text.delta") text += last["delta"];
  }
  EXPECT_THAT(
      types, ElementsAre(
                 "response.created", "response.in_progress", "response.output_item.added",
                 "response.content_part.added", "response.reasoning_text.delta",
                 "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
                 "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                 "response.output_text.done", "response.content_part.done", "response.output_item.done",
                 "response.output_item.added", "response.function_call_arguments.delta",
                 "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(text, "Hello!");
  EXPECT_EQ(last["response"]["output"].size(), 3u);
  EXPECT_EQ(last["response"]["output"][2]["call_id"].get<std::string>().substr(0, 5), "call_");
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
  const json prompt = post("/apply-template", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}).json();
  EXPECT_EQ(prompt["prompt"], "[gMASK]<sop><|user|>Hi<|assistant|><think>");
}

TEST_F(Api, TellsWhatRunsHere) {
  const json models = get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "parrot");
  EXPECT_EQ(models["data"][0]["meta"]["n_ctx"], 4096);
  EXPECT_EQ(get("/v1/models/parrot").json()["id"], "parrot");
  EXPECT_EQ(get("/props").json()["default_generation_settings"]["n_ctx"], 4096);
  EXPECT_EQ(get("/slots").json().size(), 8u);
  EXPECT_EQ(get("/health").json()["status"], "ok");
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
  EXPECT_EQ(get("/v1/embeddings").status, 501);
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
