// Mistral's answers, whose tags are in square brackets: reasoning and calls, read in every chunking, and in
// grammars.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/constraint_support.h"
#include "text/output_parser.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}}, "required": ["city"]}}}])");
  return list;
}

/// "reasoning|content|calls", the same in all chunkings.
std::string read(const std::string& text, bool thinking = false, const char* format = "mistral") {
  std::string first;
  for (size_t chunk = 0; chunk <= text.size(); ++chunk) {
    const ParsedOutput parsed = parse_output(output_format(format), tools(), thinking, text, chunk, true);
    std::string all = parsed.reasoning_content + "|" + parsed.content + "|";
    for (const ToolCall& call : parsed.tool_calls)
      all += call.name + call.arguments + (call.whole ? ";" : "...");
    if (chunk == 0) first = all;
    EXPECT_EQ(all, first) << chunk << ": " << text;
  }
  return first;
}

TEST(MistralCalls, AreReadBehindTheirTags) {
  EXPECT_EQ(read(R"([TOOL_CALLS]weather[ARGS]{"city": "Bern"})"), R"(||weather{"city":"Bern"};)");
  EXPECT_EQ(read(R"(I look.[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "[ARGS]"})"),
            R"(|I look.|ping{};weather{"city":"[ARGS]"};)");
  EXPECT_EQ(read(R"([TOOL_CALLS]ping[CALL_ID]a1B2c3D4e[ARGS]{})"), "||ping{};");
}

TEST(MistralCalls, MayLackWhatGoesWithoutSaying) {
  EXPECT_EQ(read("[TOOL_CALLS]ping[ARGS]"), "||ping{};");
  EXPECT_EQ(read(R"([TOOL_CALLS]weather{"city": "Bern"})"), R"(||weather{"city":"Bern"};)");
  EXPECT_EQ(read("[TOOL_CALLS]other{}"), "|[TOOL_CALLS]other{}|");
}

TEST(MistralCalls, OfEarlierModelsAreAList) {
  EXPECT_EQ(
      read(R"(Yes. [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bern"}, "id": "a1B2c3D4e"},)"
           R"( {"name": "other", "arguments": {}}])",
           false, "mistral_list"),
      R"(|Yes.|weather{"city":"Bern"};other{};)");
  EXPECT_EQ(read("see [1], [TOOL_CALLS] and []", false, "mistral_list"), "|see [1], [TOOL_CALLS] and []|");
}

TEST(MistralCalls, ReasoningStandsBetweenTags) {
  EXPECT_EQ(read("[THINK]a < b, x[0][/THINK]Yes: x[1]."), "a < b, x[0]|Yes: x[1].|");
  EXPECT_EQ(read("so[/THINK][TOOL_CALLS]ping[ARGS]{}", true), "so||ping{};");
}

TEST(MistralCalls, WhatIsNoCallIsText) {
  EXPECT_EQ(read("a list: [1, 2], [TOOL] and [ARGS]"), "|a list: [1, 2], [TOOL] and [ARGS]|");
  EXPECT_EQ(read("<think>x</think> <tool_call>"), "|<think>x</think> <tool_call>|");
}

TEST(MistralCalls, GrammarsWriteThem) {
  const CallRule rule{CallRule::When::Required, &tools(), "", true};
  const auto constraint = tool_call_constraint(json_model().place(&output_format("mistral")), rule);
  const auto allowed = [&](const std::string& text) {
    return passes(json_model(), *constraint->clone(), text, true);
  };
  EXPECT_TRUE(allowed(R"([TOOL_CALLS]weather[ARGS]{"city": "x"})"));
  EXPECT_TRUE(allowed(R"([TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[ARGS]{})"));
  EXPECT_FALSE(allowed(R"([TOOL_CALLS]weather[ARGS]{})"));
  EXPECT_FALSE(allowed("ping"));
  const auto list = tool_call_constraint(json_model().place(&output_format("mistral_list")), rule);
  const std::string ping = R"({"name": "ping", "arguments": {}})";
  const auto listed = [&](const std::string& text) {
    return passes(json_model(), *list->clone(), "[TOOL_CALLS]" + text, true);
  };
  EXPECT_TRUE(listed("[" + ping + "]"));
  EXPECT_TRUE(listed("[" + ping + ", " + ping + "]"));
  EXPECT_FALSE(listed(ping));
  EXPECT_FALSE(listed("[]"));
  EXPECT_FALSE(listed("[" + ping + "][" + ping + "]"));
}

}  // namespace
}  // namespace sluice::text
