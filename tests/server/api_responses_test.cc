// /v1/responses over a socket: whole answers that come back as input, and the events of a stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_fixture.h"

namespace sluice::server {
namespace {

using nlohmann::json;
using test::Api;
using test::kCalls;
using test::kTools;
using test::Reply;
using testing::ElementsAre;

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

}  // namespace
}  // namespace sluice::server
