// gpt-oss: answers in channels as OpenAI's harmony format documents them, read in every chunking; what its
// template takes, and what grammars and limits on reasoning write of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/script_executable.h"
#include "text/chat.h"
#include "text/constraint_support.h"
#include "text/output_parser.h"
#include "text/thinking_budget.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}])");
  return list;
}

struct Answer {
  std::string reasoning, content, calls;
  bool incomplete = false;

  friend bool operator==(const Answer&, const Answer&) = default;
  friend void PrintTo(const Answer& answer, std::ostream* out) {
    *out << "{" << answer.reasoning << "|" << answer.content << "|" << answer.calls
         << (answer.incomplete ? "|cut}" : "}");
  }
};

Answer answer_of(const std::string& text, size_t chunk, bool with_tools, bool thinking, bool ended) {
  const ParsedOutput parsed =
      parse_output(output_format("harmony"), with_tools ? tools() : Json(), thinking, text, chunk, ended);
  Answer answer{parsed.reasoning_content, parsed.content, "", parsed.incomplete};
  for (const ToolCall& call : parsed.tool_calls)
    answer.calls += call.name + call.arguments + (call.whole ? ";" : "...");
  return answer;
}

/// The answer, the same in all chunkings.
Answer read(const std::string& text, bool with_tools = true, bool thinking = false, bool ended = true) {
  const Answer whole = answer_of(text, 0, with_tools, thinking, ended);
  for (size_t chunk = 1; chunk <= text.size(); chunk += chunk < 24 ? 1 : 17)
    EXPECT_EQ(answer_of(text, chunk, with_tools, thinking, ended), whole) << chunk << ": " << text;
  return whole;
}

const std::string kFinal = "<|start|>assistant<|channel|>final<|message|>";

TEST(Harmony, ReasoningAndContentAreChannels) {
  EXPECT_EQ(read("<|channel|>analysis<|message|>User asks: 2 + 2.<|end|>" + kFinal + "2 + 2 = 4.<|return|>"),
            (Answer{"User asks: 2 + 2.", "2 + 2 = 4.", ""}));
  EXPECT_EQ(read("<|channel|>final<|message|>a < b, </think> and <|x|>"),
            (Answer{"", "a < b, </think> and <|x|>", ""}));
  EXPECT_EQ(read("go on<|end|>" + kFinal + "yes", true, true), (Answer{"go on", "yes", ""}));
  // Two thoughts, and words to the user before a call.
  EXPECT_EQ(read("<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two"
                 "<|end|><|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>" +
                 kFinal + "There."),
            (Answer{"one\ntwo", "I look it up.\nThere.", ""}));
  // Without a header it is content; a header that ends nowhere says nothing.
  EXPECT_EQ(read("Just words."), (Answer{"", "Just words.", ""}));
  EXPECT_EQ(read("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|chan"), (Answer{"hm", "", ""}));
  EXPECT_EQ(read("to"), (Answer{"", "to", ""}));
  EXPECT_EQ(read(""), (Answer{}));
}

TEST(Harmony, MessagesToToolsAreCalls) {
  const std::string thought = "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant";
  const Answer call{"I need it.", "", R"(weather{"city":"Bern","days":2};)"};
  // As models write it, and as the template does.
  EXPECT_EQ(read(thought + "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
                           R"({"city": "Bern", "days": 2}<|call|>)"),
            call);
  EXPECT_EQ(read(thought + " to=functions.weather<|channel|>commentary json<|message|>"
                           R"({"city": "Bern", "days": 2})"),
            call);
  EXPECT_EQ(read(thought + "<|channel|>analysis to=functions.weather code<|message|>"
                           R"({"city": "Bern", "days": 2}<|call|>)"),
            call);
  EXPECT_EQ(read("<|channel|>commentary to=functions.ping<|message|>{}<|call|>" + kFinal + "Done."),
            (Answer{"", "Done.", "ping{};"}));
  // Of an unknown function, whose caller can say so; and without arguments.
  EXPECT_EQ(read(R"(<|channel|>commentary to=functions.nothing<|message|>{"a": 1}<|call|>)"),
            (Answer{"", "", R"(nothing{"a":1};)"}));
  EXPECT_EQ(read("<|channel|>commentary to=functions.ping <|constrain|>json<|message|>"),
            (Answer{"", "", "ping{};"}));
  // Two calls, one after the other.
  EXPECT_EQ(read("<|channel|>commentary to=functions.ping<|message|>{}<|call|>"
                 "<|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}"),
            (Answer{"", "", "ping{};ping{};"}));
}

TEST(Harmony, WhatIsNoCallIsText) {
  const std::string unknown = R"(<|channel|>commentary to=functions.nothing<|message|>{"a": 1}<|call|>)";
  EXPECT_EQ(read(unknown, false), (Answer{"", R"({"a": 1})", ""}));
  EXPECT_EQ(read(R"(<|channel|>commentary to=python<|message|>{"a": 1}<|call|>)"),
            (Answer{"", R"({"a": 1})", ""}));
  EXPECT_EQ(read("<|channel|>commentary to=functions.ping<|message|>{}<|call|>", false),
            (Answer{"", "{}", ""}));
  EXPECT_EQ(read("<|channel|>commentary to=functions.ping<|message|>no json"), (Answer{"", "no json", ""}));
  const Answer cut =
      read(R"(<|channel|>commentary to=functions.weather<|message|>{"city": "Be)", true, false, false);
  EXPECT_TRUE(cut.incomplete);
  EXPECT_EQ(cut.calls, R"(weather{"city":"Be...)");
}

TEST(Harmony, ArgumentsAreToldWhileTheyAreWritten) {
  OutputParser parser(output_format("harmony"), tools(), false);
  std::vector<OutputEvent> events =
      parser.push(R"(<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Be)");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, OutputEvent::Kind::Call);
  EXPECT_EQ(events[0].text, "weather");
  EXPECT_EQ(events[1].text, R"({"city":"Be)");
  events = parser.push(R"(rn"}<|call|>)");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, R"(rn"})");
  EXPECT_EQ(events[1].kind, OutputEvent::Kind::CallEnd);
}

TEST(Harmony, LongTextsTakeLinearTime) {
  std::string text = "<|channel|>analysis<|message|>";
  for (int i = 0; i < 200000; ++i) text += "<|end|><|start|>";
  EXPECT_EQ(answer_of(text, 4096, true, false, true).reasoning, "");
  text = "<|channel|>" + std::string(1 << 20, 'x');
  EXPECT_EQ(answer_of(text, 4096, true, false, true).content.size(), text.size());
}

ChatTemplate gpt_oss() {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/text/templates/openai-gpt-oss-120b.jinja");
  std::stringstream source;
  source << file.rdbuf();
  return {source.str(), "<|startoftext|>", "<|return|>", ControlTokens()};
}

TEST(Harmony, TheTemplateGetsReasoningWhereItShowsIt) {
  const ChatTemplate chat = gpt_oss();
  EXPECT_EQ(chat.output_format().name, "harmony");
  const auto prompt = [&](const std::string& content) {
    Json call = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "ping"}, {"arguments", "{}"}}}};
    const Json messages = {{{"role", "user"}, {"content", "hello"}},
                           {{"role", "assistant"},
                            {"content", content},
                            {"reasoning_content", "I wonder."},
                            {"tool_calls", {call}}},
                           {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "pong"}}};
    return chat.render({.messages = messages, .tools = tools()}).prompt.text;
  };
  const std::string call =
      "<|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}<|call|>"
      "<|start|>functions.ping to=assistant<|channel|>commentary<|message|>\"pong\"<|end|><|start|>assistant";
  EXPECT_THAT(prompt(""), HasSubstr("<|channel|>analysis<|message|>I wonder.<|end|>" + call));
  // It refuses both beside a call.
  EXPECT_THAT(prompt("I look."),
              HasSubstr("<|channel|>analysis<|message|>I wonder.\n\nI look.<|end|>" + call));
}

TEST(Harmony, EffortReachesTheTemplate) {
  const ChatTemplate chat = gpt_oss();
  const Json messages = {{{"role", "user"}, {"content", "hello"}}};
  const auto render = [&](const Json& arguments) {
    return chat.render({.messages = messages, .template_arguments = arguments});
  };
  const ChatPrompt prompt = render({{"reasoning_effort", "high"}});
  EXPECT_THAT(prompt.prompt.text, HasSubstr("Reasoning: high"));
  EXPECT_THAT(render(nullptr).prompt.text, HasSubstr("Reasoning: medium"));
  EXPECT_THAT(render({{"reasoning_effort", "minimal"}}).prompt.text, HasSubstr("Reasoning: low"));
  EXPECT_THAT(render({{"reasoning_effort", "xhigh"}}).prompt.text, HasSubstr("Reasoning: high"));
  EXPECT_THAT(render({{"enable_thinking", false}}).prompt.text, HasSubstr("Reasoning: low"));
  EXPECT_FALSE(prompt.starts_in_thinking);
  EXPECT_TRUE(prompt.prompt.text.ends_with("<|start|>assistant"));
}

TEST(Harmony, AnAnswerThatGoesOnIsContent) {
  const ChatTemplate chat = gpt_oss();
  const Json messages = {{{"role", "user"}, {"content", "hello"}},
                         {{"role", "assistant"}, {"content", "It is"}}};
  const ChatPrompt prompt =
      chat.render({.messages = messages, .add_generation_prompt = false, .continue_last = true});
  EXPECT_TRUE(prompt.prompt.text.ends_with("<|start|>assistant<|channel|>final<|message|>It is"));
  OutputParser parser(chat.output_format(), nullptr, prompt.starts_in_thinking);
  parser.go_on();
  const std::vector<OutputEvent> events = parser.push(" so.");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, " so.");
}

TEST(Harmony, GrammarsBeginInTheFinalChannel) {
  const auto constraint = json_schema_constraint(Json::parse(R"({"type": "integer"})"),
                                                 json_model().place(&output_format("harmony")));
  const auto allowed = [&](const std::string& text) {
    return passes(json_model(), *constraint->clone(), text, true);
  };
  EXPECT_TRUE(allowed("<|channel|>final<|message|>42"));
  EXPECT_TRUE(allowed("<|channel|>analysis<|message|>Hm, \"x\".<|end|>" + kFinal + "42"));
  EXPECT_FALSE(allowed("42"));
  EXPECT_FALSE(allowed("<|channel|>analysis<|message|>Hm<|end|>"));
  EXPECT_FALSE(allowed("<|channel|>final<|message|>x"));
}

TEST(Harmony, CallsAreMadeByTheirSchemas) {
  const CallRule rule{CallRule::When::Required, &tools(), "", true};
  const auto constraint = tool_call_constraint(json_model().place(&output_format("harmony")), rule);
  const auto allowed = [&](const std::string& text) {
    return passes(json_model(), *constraint->clone(), text, true);
  };
  const std::string to = "<|channel|>commentary to=functions.";
  EXPECT_TRUE(allowed(to + R"(weather <|constrain|>json<|message|>{"city": "x", "days": 1})"));
  EXPECT_TRUE(allowed("<|channel|>analysis<|message|>x<|end|><|start|>assistant" + to +
                      "ping <|constrain|>json<|message|>{}"));
  EXPECT_FALSE(allowed(to + R"(weather <|constrain|>json<|message|>{"days": 1})"));
  EXPECT_FALSE(allowed(to + "pong <|constrain|>json<|message|>{}"));
  EXPECT_FALSE(allowed("<|channel|>final<|message|>x"));
}

TEST(Harmony, ALimitEndsTheAnalysis) {
  const Tokenizer tokenizer = test::byte_tokenizer();
  const auto limit = limit_thinking(3, tokenizer, output_format("harmony"), false);
  std::vector<uint32_t> bits((static_cast<size_t>(tokenizer.size()) + 31) / 32);
  std::string text;
  for (const int32_t token : tokenizer.encode("<|channel|>analysis<|message|>abc", true)) {
    ASSERT_TRUE(limit->accept(token)) << text;
    text += tokenizer.bytes(token, true);
  }
  std::string imposed;
  while (imposed.size() < 100 && limit->allowed(bits)) {
    int32_t next = 0;
    while (!has(bits, next)) ++next;
    ASSERT_TRUE(limit->accept(next));
    imposed += tokenizer.bytes(next, true);
  }
  EXPECT_EQ(imposed, "<|end|>" + kFinal);
}

}  // namespace
}  // namespace sluice::text
