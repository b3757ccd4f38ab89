// /v1/messages over a socket: whole answers, blocks of a stream, counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_fixture.h"

namespace sluice::server {
namespace {

using nlohmann::json;
using test::Api;
using test::kCalls;
using test::Reply;
using testing::HasSubstr;

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
  std::string open, input;
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
      if (delta["type"] == "input_json_delta") input += delta["partial_json"];
    }
    if (type == "content_block_stop" && blocks.back()["type"] == "tool_use")
      blocks.back()["input"] = json::parse(std::exchange(input, {}));
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
                "messages[0].content[0].type: \"image\""}};
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

TEST_F(Api, MessagesThinkWithinTheirBudget) {
  say("I think and think.</think>Hello!");
  const json body = json::parse(R"({"max_tokens":500,"thinking":{"type":"enabled","budget_tokens":7},
    "messages":[{"role":"user","content":"Hi"}]})");
  const json answer = post("/v1/messages", body).json();
  EXPECT_EQ(answer["content"][0]["thinking"], "I think") << answer;
  EXPECT_EQ(answer["content"][1]["type"], "text") << answer;
}

}  // namespace
}  // namespace sluice::server
