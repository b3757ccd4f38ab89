// /v1/chat/completions over a socket: what of the text that a test tells the model to say arrives where.
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
using testing::HasSubstr;
using testing::StartsWith;

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
  const json& usage = answer["usage"];
  EXPECT_EQ(usage["completion_tokens"], 28);  // 27 bytes and the end token
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 16);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 28);
  EXPECT_EQ(answer["timings"]["predicted_n"], 28);
  EXPECT_EQ(answer["timings"]["draft_n"], 0) << "this server drafts nothing";
  EXPECT_NE(reply.header("x-request-id"), "");
}

TEST_F(Api, PredictionsChangeNothing) {
  say("</think>Hello, you!");
  for (const json& content : {json("Hello, you!"), json::array({{{"type", "text"}, {"text", "Hello, "}}})}) {
    const Reply reply =
        post("/v1/chat/completions", chat({{"prediction", {{"type", "content"}, {"content", content}}}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["message"]["content"], "Hello, you!");
  }
  const json pace = {{"speculative.n_max", 3}, {"speculative.n_min", 1}, {"speculative.p_min", 0.5}};
  EXPECT_EQ(post("/v1/chat/completions", chat(pace)).json()["choices"][0]["message"]["content"],
            "Hello, you!");
  const auto refused = [this](const json& prediction) {
    const Reply reply = post("/v1/chat/completions", chat({{"prediction", prediction}}));
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.json()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused({{"type", "content"}}), HasSubstr("prediction.content"));
  EXPECT_THAT(refused({{"type", "image"}, {"content", "x"}}), HasSubstr("prediction.type"));
  EXPECT_THAT(refused({{"type", "content"}, {"content", {1}}}), HasSubstr("prediction.content[0]"));
  EXPECT_THAT(refused("text"), HasSubstr("prediction"));
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

TEST_F(Api, StreamsTellHowFarThePromptIsRead) {
  say("Well read.");
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word " + std::to_string(i) + " ";
  const json asks = {{"messages", {{{"role", "user"}, {"content", text}}}},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}},
                     {"return_progress", true}};
  const auto list = chunks(post("/v1/chat/completions", chat(asks)));
  std::vector<json> told;
  bool spoken = false;
  for (const json& chunk : list) {
    if (!chunk.contains("prompt_progress")) {
      spoken |= !chunk["choices"].empty() && !chunk["choices"][0]["delta"].value("content", "").empty();
      continue;
    }
    EXPECT_FALSE(spoken) << "before the first word";
    told.push_back(chunk["prompt_progress"]);
  }
  ASSERT_GE(told.size(), 2u);
  const int64_t total = list.back()["usage"]["prompt_tokens"];
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i]["total"], total);
    EXPECT_EQ(told[i]["cache"], told[0]["processed"]) << "what was there before";
    EXPECT_GE(told[i]["processed"], told[i == 0 ? 0 : i - 1]["processed"]);
    EXPECT_GE(told[i]["time_ms"], 0);
  }
  EXPECT_EQ(told.back()["processed"], total);
  // Only where it is asked for.
  json silent = asks;
  silent["return_progress"] = false;
  for (const json& chunk : chunks(post("/v1/chat/completions", chat(silent))))
    EXPECT_FALSE(chunk.contains("prompt_progress"));
  silent = {{"return_progress", true}};
  EXPECT_FALSE(post("/v1/chat/completions", chat(silent)).json().contains("prompt_progress"));
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
  std::vector<json> heads;
  std::vector<std::string> arguments;
  size_t pieces = 0;
  for (const json& chunk : list) {
    for (const json& call : chunk["choices"][0]["delta"].value("tool_calls", json::array())) {
      if (call.contains("id")) {
        EXPECT_EQ(call["index"], heads.size());
        heads.push_back(call);
        arguments.emplace_back();
      }
      EXPECT_EQ(call["index"], heads.size() - 1);
      arguments.back() += call["function"]["arguments"];
      ++pieces;
    }
  }
  ASSERT_EQ(heads.size(), 2u);
  EXPECT_GT(pieces, 6u);
  EXPECT_EQ(heads[0]["function"]["name"], "weather");
  EXPECT_EQ(json::parse(arguments[0]), (json{{"city", "Bern"}, {"days", 3}}));
  EXPECT_EQ(arguments[1], "{}");
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

/// A call that the end of the answer cuts is told as far as it came, and nobody is told that all is well.
TEST_F(Api, CutCallsAreTold) {
  const std::string part = "</think><tool_call>weather<arg_key>city</arg_key><arg_value>Ber";
  const struct {
    std::string text, arguments;
    bool whole;
  } cases[] = {{part, "{\"city\":\"Ber", false},
               {part + "n</arg_value>", "{\"city\":\"Bern\"}", true},
               {"</think><tool_call>weath", "", false},
               {"</think><tool_call>clock", "{}", true}};
  for (const auto& [text, arguments, whole] : cases) {
    say(text);
    const json choice = post("/v1/chat/completions", chat({{"tools", kTools}})).json()["choices"][0];
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], arguments);
    EXPECT_EQ(choice["finish_reason"], whole ? "tool_calls" : "length");
    say(text);
    std::string streamed;
    const auto list = chunks(post("/v1/chat/completions", chat({{"tools", kTools}, {"stream", true}})));
    for (const json& chunk : list)
      for (const json& call : chunk["choices"][0]["delta"].value("tool_calls", json::array()))
        streamed += call["function"]["arguments"];
    EXPECT_EQ(streamed, arguments);
    EXPECT_EQ(list.back()["choices"][0]["finish_reason"], whole ? "tool_calls" : "length");

    say(text);
    json body = {
        {"max_tokens", 200}, {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", json::array()}};
    for (const json& tool : kTools)
      body["tools"].push_back(
          {{"name", tool["function"]["name"]}, {"input_schema", tool["function"]["parameters"]}});
    const json message = post("/v1/messages", body).json();
    EXPECT_EQ(message["stop_reason"], whole ? "tool_use" : "max_tokens") << message;
    EXPECT_EQ(message["content"].back()["type"], "tool_use") << message;
    if (text == part) {
      EXPECT_EQ(message["content"].back()["input"], (json{{"city", "Ber"}}));
    }

    say(text);
    json flat = json::array();
    for (json tool : kTools) {
      flat.push_back(tool["function"]);
      flat.back()["type"] = "function";
    }
    const json response = post("/v1/responses", {{"input", "x"}, {"tools", flat}}).json();
    EXPECT_EQ(response["status"], whole ? "completed" : "incomplete");
    EXPECT_EQ(response["output"].back()["status"], whole ? "completed" : "incomplete");
    EXPECT_EQ(response["output"].back()["arguments"], arguments);
  }
  // Whole but for its tag, and cut by the limit: not the model's own end.
  say(part + "n</arg_value></tool_call>");
  const json cut =
      post("/v1/chat/completions", chat({{"tools", kTools}, {"max_tokens", 74}})).json()["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(cut["message"]["tool_calls"][0]["function"]["name"], "weather");
}

/// Streams begin before the model has read its prompt.
TEST_F(Api, StreamsBeginAtOnce) {
  const std::pair<const char*, json> requests[] = {
      {"/v1/chat/completions", chat({{"stream", true}})},
      {"/v1/messages", chat({{"stream", true}, {"max_tokens", 20}})},
      {"/v1/responses", {{"stream", true}, {"input", "x"}}}};
  const char* const first[] = {"\"role\":\"assistant\"", "message_start", "response.created"};
  for (size_t i = 0; i < 3; ++i) {
    say("</think>Hi");
    server_->parrot.hold = true;
    test::Client client(server_->port());
    client.send(test::Client::request("POST", requests[i].first, requests[i].second.dump()));
    std::string head;
    while (head.find(first[i]) == std::string::npos) {
      const std::string more = client.receive(5000);
      if (more.empty()) break;
      head += more;
    }
    EXPECT_THAT(head, HasSubstr(first[i]));
    server_->parrot.hold = false;
  }
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

/// The model goes on until the engine hears that the answer was cut; a token is a byte here.
TEST_F(Api, TokensBehindTheCutOfAnAnswerAreNotCounted) {
  const std::string further(3000, 'x');
  const std::string stopped = "</think>one two", called = kCalls.substr(0, kCalls.find("<tool_call>clock"));
  const struct {
    std::string text;
    json body;
    const char* usage;
  } cases[] = {{stopped, {{"stop", "two"}}, "completion_tokens"},
               {called, {{"tools", kTools}, {"parallel_tool_calls", false}}, "completion_tokens"}};
  for (const auto& [text, body, usage] : cases) {
    const auto count = static_cast<int>(text.size());
    say(text + further);
    const json answer = post("/v1/chat/completions", chat(body)).json();
    EXPECT_EQ(answer["usage"]["completion_tokens"], count) << answer;
    EXPECT_EQ(answer["timings"]["predicted_n"], count);
    EXPECT_GT(answer["timings"]["predicted_ms"], 0);
    say(text + further);
    json streamed = chat(body);
    streamed["stream"] = true, streamed["stream_options"] = {{"include_usage", true}};
    EXPECT_EQ(chunks(post("/v1/chat/completions", streamed)).back()["usage"]["completion_tokens"], count);
  }
  say(stopped + further);
  const json message = post("/v1/messages", {{"max_tokens", 2000},
                                             {"stop_sequences", {"two"}},
                                             {"messages", {{{"role", "user"}, {"content", "?"}}}}})
                           .json();
  EXPECT_EQ(message["usage"]["output_tokens"], static_cast<int>(stopped.size())) << message;
}

TEST_F(Api, StopTextsAreThoseOfTheContent) {
  const json stop = {{"stop", {"END"}}};
  const auto choice_of = [&](const json& body) {
    return post("/v1/chat/completions", chat(body)).json()["choices"][0];
  };
  say("I say END at the end.</think>It is 4.\n\nEND and more");
  json choice = choice_of(stop);
  EXPECT_EQ(choice["message"]["reasoning_content"], "I say END at the end.");
  EXPECT_EQ(choice["message"]["content"], "It is 4.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  // What only begins like one is content, at the end, too.
  say("</think>EN ENN EN");
  EXPECT_EQ(choice_of(stop)["message"]["content"], "EN ENN EN");
  // In the arguments of a call it is the call's; behind the call it is content again.
  say("</think><tool_call>write<arg_key>text</arg_key><arg_value>an END</arg_value></tool_call>So END it");
  json with_tools = stop;
  with_tools["tools"] = {
      {{"type", "function"}, {"function", {{"name", "write"}, {"parameters", json::object()}}}}};
  choice = choice_of(with_tools);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"text":"an END"})");
  EXPECT_EQ(choice["message"]["content"], "So");
}

TEST_F(Api, ChatSwitchesThinkingOff) {
  for (const json& way :
       {json{{"chat_template_kwargs", {{"enable_thinking", false}}}}, json{{"reasoning_effort", "none"}},
        json{{"enable_thinking", false}}, json{{"thinking", {{"type", "disabled"}}}}, json{{"think", false}},
        json{{"reasoning", {{"effort", "none"}}}}, json{{"reasoning", {{"enabled", false}}}}}) {
    say("Straight away.");
    const json message = post("/v1/chat/completions", chat(way)).json()["choices"][0]["message"];
    EXPECT_EQ(message["content"], "Straight away.") << way;
    EXPECT_FALSE(message.contains("reasoning_content"));
  }
}

TEST_F(Api, ChatThinksWithinItsBudget) {
  say("I think and think.</think>Hello!");
  for (const json& budget : std::vector<json>{{{"thinking_budget_tokens", 7}},
                                              {{"thinking", {{"type", "enabled"}, {"budget_tokens", 7}}}},
                                              {{"reasoning", {{"max_tokens", 7}}}}}) {
    const json answer = post("/v1/chat/completions", chat(budget)).json();
    EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "I think") << answer;
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  }
  const json free = post("/v1/chat/completions", chat({{"thinking_budget_tokens", -1}})).json();
  EXPECT_EQ(free["choices"][0]["message"]["reasoning_content"], "I think and think.") << free;
  const json both = post("/v1/chat/completions", chat({{"thinking_budget_tokens", 3},
                                                       {"max_tokens", 60},
                                                       {"response_format", {{"type", "json_object"}}}}))
                        .json();
  EXPECT_EQ(both["choices"][0]["message"]["reasoning_content"], "I t") << both;
  EXPECT_THAT(both["choices"][0]["message"]["content"].get<std::string>(), StartsWith("{")) << both;
}

TEST_F(Api, SamplersOfOtherServersMayBeSwitchedOff) {
  say("</think>Yes");
  const json off = {{"typical_p", 1.0},         {"mirostat", 0},         {"mirostat_tau", 5.0},
                    {"xtc_probability", 0},     {"dry_multiplier", 0.0}, {"top_n_sigma", -1},
                    {"use_beam_search", false}, {"n_probs", 0},          {"some_new_field", nullptr}};
  EXPECT_EQ(post("/v1/chat/completions", chat(off)).status, 200);
  json completion = off;
  completion["prompt"] = "Hello";
  EXPECT_EQ(post("/v1/completions", completion).status, 200);
  const Reply on = post("/v1/chat/completions", chat({{"mirostat", 2}}));
  EXPECT_EQ(on.status, 400);
  EXPECT_EQ(on.json()["error"]["message"],
            "mirostat: 2 is not supported here, only 0, which changes nothing");
  EXPECT_EQ(post("/v1/chat/completions", chat({{"use_beam_search", true}})).status, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat({{"typical_p", "1"}})).status, 400);
}

// Log-probabilities are of the content that is returned: put together, its tokens' bytes are the content,
// whole and in each chunk of a stream, whatever stands before, between and behind.
TEST_F(Api, LogprobsAreOfTheContent) {
  const std::string call = "<tool_call>clock</tool_call>";
  struct Case {
    std::string said, content;
    json more = json::object();
  };
  const Case cases[] = {
      {"Hm.</think>ab", "ab"},
      {"Hm.</think>\n\n  a  b \n", "a  b"},
      {"Hm.</think>Gr\xC3\xBC\xC3\x9F, \xE6\xB0\xB4", "Gr\xC3\xBC\xC3\x9F, \xE6\xB0\xB4"},
      {"Hm.</think>a </thin b", "a </thin b"},
      {"never ends", ""},
      {"Hm.</think>I look. " + call, "I look.", {{"tools", kTools}}},
      {"Hm.</think>" + call + "\nlater", "later", {{"tools", kTools}}},
      {"Hm.</think>" + call + call, "", {{"tools", kTools}}},
      {"Hm.</think>a <tool_call> b", "a <tool_call> b"},
      {"no STOP</think>one STOP two", "one", {{"stop", "STOP"}}},
      {"Hm.</think>one STO two", "one STO two", {{"stop", "STOP"}}},
      {"Hm.</think>ab\xE6\xB0", "ab\xEF\xBF\xBD"},
  };
  const auto bytes_of = [](const json& logprobs) {
    std::string bytes;
    for (const json& token : logprobs["content"])
      for (const json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    return bytes;
  };
  for (const auto& [said, content, more] : cases) {
    json body = chat({{"logprobs", true}});
    body.update(more);
    say(said);
    const json choice = post("/v1/chat/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["message"]["content"].is_null() ? "" : choice["message"]["content"], json(content));
    const bool broken = content.ends_with("\xEF\xBF\xBD");  // two tokens of a character that never came
    const std::string expected = broken ? content.substr(0, content.size() - 3) + "\xE6\xB0" : content;
    EXPECT_EQ(bytes_of(choice["logprobs"]), expected) << said;
    body["stream"] = true;
    say(said);
    std::string text, bytes;
    for (const json& chunk : chunks(post("/v1/chat/completions", body))) {
      const json& part = chunk["choices"][0];
      const std::string piece = part["delta"].value("content", "");
      text += piece;
      if (part["logprobs"].is_null()) continue;
      EXPECT_NE(piece, "") << "tokens stand beside their text";
      bytes += bytes_of(part["logprobs"]);
    }
    EXPECT_EQ(text, content);
    EXPECT_EQ(bytes, expected) << said;
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
    ASSERT_EQ(tokens.size(), 2u) << "of the content, not of the tag before it";
    EXPECT_EQ(tokens[0]["token"], "a");
    EXPECT_EQ(tokens[0]["bytes"], json({97}));
    EXPECT_LT(tokens[0]["logprob"], 0.001);
    ASSERT_EQ(tokens[0]["top_logprobs"].size(), 2u);
    EXPECT_EQ(tokens[0]["top_logprobs"][0]["token"], "a");
  }
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
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content", "is missing"},
      {{{"thinking_budget_tokens", -2}}, "thinking_budget_tokens", ""},
      {{{"think", 1}}, "think", "expected a string"},
      {{{"temperature", "hot"}}, "temperature", "expected a number, not a string"},
      {{{"temperature", -1}}, "temperature", "-1, expected 0 to"},
      {{{"top_p", 2}}, "top_p", ""},
      {{{"max_tokens", 1.5}}, "max_tokens", "whole number"},
      {{{"max_tokens", 1e30}}, "max_tokens", ""},
      {{{"n", 0}}, "n", ""},
      {{{"max_tokens", uint64_t{1} << 63}}, "max_tokens", "9223372036854775808, expected"},
      {{{"seed", 1.5}}, "seed", "whole number"},
      {{{"seed", 0x1p63}}, "seed", "expected"},
      {{{"stop", {1}}}, "stop[0]", "expected a string"},
      {{{"stream", "yes"}}, "stream", "true or false"},
      {{{"logit_bias", {{"999", 1}}}}, "logit_bias", "token id from 0 to 256"},
      {{{"logit_bias", {{"1", "x"}}}}, "logit_bias", ""},
      {{{"top_logprobs", 3}}, "top_logprobs", "needs logprobs"},
      {{{"top_logprobs", 99}, {"logprobs", true}}, "top_logprobs", ""},
      {{{"tools", {{{"type", "function"}}}}}, "tools[0].name", "is missing"},
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

}  // namespace
}  // namespace sluice::server
