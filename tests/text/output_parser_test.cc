// Output parsers: the shared cases of GLM-4.7-Flash, an oracle in Python on random texts, the other formats,
// every chunking, and texts made to take long.
#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "text/json_stream.h"
#include "text/json_text.h"
#include "text/output_support.h"
#include "text/support.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

using testing::HasSubstr;

std::vector<nlohmann::json> shared_cases() {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/text/chat_output/glm47.jsonl");
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

TEST(OutputParser, SharedGlmCases) {
  const auto cases = shared_cases();
  ASSERT_GE(cases.size(), 69u);
  for (const auto& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const Json tool_list = Json::parse(one["tools"].dump());
    const auto result =
        parse_all_ways("glm47", tool_list, one["starts_in_thinking"], one["text"].get<std::string>());
    EXPECT_EQ(result, one["expected"]);
  }
}

const std::vector<std::string> kGlmPieces = {"<tool_call>",
                                             "<tool_call>",
                                             "ping",
                                             "f",
                                             "<arg_key>",
                                             "</arg_key>",
                                             "<arg_value>",
                                             "</arg_value>",
                                             "</tool_call>",
                                             "</think>",
                                             "<think>",
                                             " ",
                                             "\n",
                                             "s",
                                             "n",
                                             "o",
                                             "5",
                                             "null",
                                             " True ",
                                             "[1, 2]",
                                             "{\"k\": 2.0}",
                                             "a",
                                             "<",
                                             "x y",
                                             "é",
                                             "<tool_call>f",
                                             "-1.5e3",
                                             "nope",
                                             "<tool_call>ping</tool_call>",
                                             "<arg_key>n</arg_key><arg_value>7</arg_value>",
                                             "<arg_key>s</arg_key>\n<arg_value>",
                                             "<tool_call>f<arg_key>any</arg_key><arg_value>",
                                             "</arg_value></tool_call>"};

class RandomTexts : public testing::TestWithParam<const char*> {};

TEST_P(RandomTexts, AgreeWithTheRules) {
  const std::string format = GetParam();
  const auto& pieces = format == "glm47" ? kGlmPieces : kQwenPieces;
  std::mt19937 random(7);
  std::string input;
  std::vector<Json> cases;
  for (int i = 0; i < 4000; ++i) {
    const Json one = {{"format", format},
                      {"tools", tools()},
                      {"starts_in_thinking", random() % 2 == 0},
                      {"text", soup(random, pieces, 1 + random() % 24)}};
    if (utf8_valid_prefix(one["text"].get<std::string>()) != one["text"].get<std::string>().size()) continue;
    cases.push_back(one);
    input += one.dump() + "\n";
  }
  const TemporaryFile file(input);
  const auto lines = python_lines("output_oracle.py", file.path());
  ASSERT_EQ(lines.size(), cases.size());
  size_t calls = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string text = cases[i]["text"];
    const auto result = parse(format, tools(), cases[i]["starts_in_thinking"], text, random() % 8);
    ASSERT_EQ(result, nlohmann::json::parse(lines[i])) << cases[i];
    calls += result["tool_calls"].size();
  }
  EXPECT_GT(calls, 500u);  // the soup is not all text
}
INSTANTIATE_TEST_SUITE_P(OutputParser, RandomTexts, testing::Values("glm47", "qwen3coder"),
                         [](const auto& one) { return std::string(one.param); });

TEST(OutputParser, EveryFormatIsIndifferentToChunks) {
  std::mt19937 random(11);
  std::vector<std::string> pieces = kGlmPieces;
  pieces.insert(pieces.end(), kQwenPieces.begin(), kQwenPieces.end());
  for (const OutputFormat& format : output_formats())
    for (const std::string_view tag :
         {format.call_open, format.call_close, format.separator, format.section_open, format.section_close})
      if (!tag.empty()) pieces.emplace_back(tag);
  for (const char* piece :
       {"{\"name\": \"f\", \"arguments\": {\"s\": \"", "\"}}", "{}", "{\"n\":", "}", "\"", "\\",
        "functions.f:0", "function", "```json\n", "\n```", "\xff", "\xe2\x96", "\x81"})
    pieces.emplace_back(piece);
  for (const OutputFormat& format : output_formats()) {
    for (int i = 0; i < 300; ++i) {
      const std::string text = soup(random, pieces, 1 + random() % 20);
      const bool thinking = random() % 2 == 0;
      const auto whole = parse(format.name, tools(), thinking, text);
      for (const size_t chunk : {1, 2, 3, 5, 11})
        ASSERT_EQ(parse(format.name, tools(), thinking, text, chunk), whole) << format.name << ": " << text;
    }
  }
}

TEST(OutputParser, EventsCarryWholeCharactersAsSoonAsTheyAreCertain) {
  OutputParser parser(output_format("glm47"), tools(), true);
  const auto push = [&](std::string_view bytes) {
    std::string shown;
    for (const OutputEvent& event : parser.push(bytes)) {
      shown += event.kind == OutputEvent::Kind::Reasoning ? "R:"
               : event.kind == OutputEvent::Kind::Content ? "C:"
               : event.kind == OutputEvent::Kind::Call    ? "T:"
               : event.kind == OutputEvent::Kind::CallEnd ? "E:"
                                                          : "A:";
      shown += event.text + "|";
    }
    return shown;
  };
  EXPECT_EQ(push("\n"), "");
  EXPECT_EQ(push("why \xC3"), "R:why|");
  EXPECT_EQ(push("\xA9\n"), "R: \u00e9|");
  EXPECT_TRUE(parser.thinking());
  EXPECT_EQ(push("</thi"), "");
  EXPECT_EQ(push("nk>a <"), "C:a|");
  EXPECT_FALSE(parser.thinking());
  EXPECT_EQ(push("b "), "C: <b|");
  EXPECT_EQ(push("<tool_call>f<arg_key>s</arg_key>"), "");  // may be text yet
  EXPECT_EQ(push("<arg_value>1\""), "T:f|A:{\"s\":\"1\\\"|");
  EXPECT_EQ(push("\n</arg_va"), "A:\\n|");
  EXPECT_EQ(push("l</arg_value>"), "A:</arg_val\"|");
  EXPECT_EQ(push("<arg_key>n</arg_key><arg_value>12"), "A:,\"n\":|");  // what a number is shows at its end
  EXPECT_EQ(push("</arg_value>"), "A:12|");
  EXPECT_EQ(push("</tool_call>\n\nok"), "A:}|E:|C:\nok|");
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_FALSE(parser.incomplete());
}

TEST(OutputParser, Hermes) {
  const auto run = [](bool thinking, std::string_view text) {
    return parse_all_ways("hermes", tools(), thinking, text);
  };
  EXPECT_EQ(
      run(false,
          "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\", \"n\": 1}}\n"
          "</tool_call>\n<tool_call>{\"name\":\"ping\"}</tool_call>"),
      expected("", "Let me see.", {call("f", {{"s", "</tool_call>"}, {"n", 1}}), call("ping")}));
  EXPECT_EQ(run(true, "hm</think>\n\nHi"), expected("hm", "Hi"));
  EXPECT_EQ(run(true, "hm <tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool_call>"),
            expected("hm", "", {call("ping")}));
  EXPECT_EQ(run(true, "hm <tool_call>{\"name\":\"what\",\"arguments\":{}}</tool_call>")["tool_calls"].size(),
            0u);
  // The closing tag may lack at the end, nothing else may.
  EXPECT_EQ(run(false, "<tool_call>{\"name\":\"ping\",\"arguments\":{}}\n"),
            expected("", "", {call("ping")}));
  EXPECT_EQ(run(false, "<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool"),
            expected("", "", {call("ping")}));
  EXPECT_EQ(run(false, "A <tool_call>{\"name\":\"ping\",\"arguments\":{}"), expected("", "A", {}, true));
  EXPECT_EQ(run(false, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\": 1}\"}</tool_call>"),
            expected("", "", {call("f", {{"n", 1}})}));
  for (const char* text :
       {"<tool_call>{\"name\": f}</tool_call>", "<tool_call>ping</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>",
        "<tool_call>{\"name\":\"ping\",} </tool_call>", "<tool_call>{\"name\":\"ping\"} and</tool_call>"})
    EXPECT_EQ(run(false, text), expected("", text));
}

TEST(OutputParser, AnOpeningTagMayStandBeforeSeveralCalls) {
  const std::string first = R"({"name": "f", "arguments": {"s": "]}"}})", second = R"({"name": "ping"})";
  const nlohmann::json both = {call("f", {{"s", "]}"}}), call("ping")};
  const std::vector<std::array<std::string, 3>> forms = {{"hermes", "<tool_call>", "</tool_call>"},
                                                         {"tool_calls", "<tool_calls>", "</tool_calls>"},
                                                         {"nemotron", "<TOOLCALL>", "</TOOLCALL>"},
                                                         {"mistral_list", "[TOOL_CALLS]", ""}};
  for (const auto& [format, open, close] : forms) {
    const auto run = [&format = format](const std::string& text) {
      return parse_all_ways(format, tools(), false, text);
    };
    EXPECT_EQ(run("A" + open + "[" + first + " , " + second + "]\n" + close + " B"),
              expected("", "A\nB", {both[0], both[1]}));
    EXPECT_EQ(run(open + "[" + first + "]" + close), expected("", "", {both[0]}));
    EXPECT_EQ(run(open + first + close), expected("", "", {both[0]}));
    EXPECT_EQ(run(open + "[1, 2]" + close), expected("", open + "[1, 2]" + close));
    // What is cut is told as far as it came: the first call is whole.
    const ParsedOutput cut = parse_output(output_format(format), tools(), false,
                                          open + "[" + first + "," + first.substr(0, first.size() - 4));
    ASSERT_EQ(cut.tool_calls.size(), 2u) << format;
    EXPECT_TRUE(cut.tool_calls[0].whole && !cut.tool_calls[1].whole && cut.incomplete) << format;
    EXPECT_EQ(cut.content, "") << format;
  }
  EXPECT_EQ(
      parse_all_ways("hermes", tools(), false, "<tool_call>\n" + first + "\n" + second + "\n</tool_call>"),
      expected("", "", {both[0], both[1]}));
  EXPECT_EQ(
      parse_all_ways("hermes", tools(), true, "so <tool_call>[" + first + "," + second + "]</tool_call>"),
      expected("so", "", {both[0], both[1]}));
  EXPECT_EQ(parse_all_ways("llama3", tools(), false, "[" + first + ", " + second + "]"),
            expected("", "", {both[0], both[1]}));
  EXPECT_EQ(parse_all_ways("llama3", tools(), false, "[1] " + first), expected("", "[1] " + first));
}

// Each text as a model writes it inside of a JSON string or for a value, and what JSON has for it.
TEST(OutputParser, WhatModelsGetWrongInJsonIsPutRight) {
  const std::vector<std::array<std::string, 2>> cases = {{R"("\d+\.\d")", R"("\\d+\\.\\d")"},
                                                         {R"("C:\dir\user")", R"("C:\\dir\\user")"},
                                                         {R"("it\'s")", R"("it's")"},
                                                         {R"("\u12 \u")", R"("\\u12 \\u")"},
                                                         {R"("\ud83d\x")", R"("\ufffd\\x")"},
                                                         {R"("\u00e9\n\"")", R"("\u00e9\n\"")"},
                                                         {R"([True, False, None])", "[true,false,null]"},
                                                         {"1e400", "1e400"}};
  for (const auto& [written, right] : cases) {
    const std::string text = R"(<tool_call>{"name": "f", "arguments": {"any": )" + written + "}}</tool_call>";
    for (size_t chunk = 0; chunk <= text.size(); ++chunk) {
      const ParsedOutput output = parse_output(output_format("hermes"), tools(), false, text, chunk);
      ASSERT_EQ(output.tool_calls.size(), 1u) << text;
      ASSERT_EQ(output.tool_calls[0].arguments, R"({"any":)" + right + "}") << chunk << ": " << text;
    }
  }
  for (const char* wrong : {"Tru", "none", "NaN", "[Truefalse]"}) {
    const std::string text =
        std::string(R"(<tool_call>{"name": "f", "arguments": {"any": )") + wrong + "}}</tool_call>";
    EXPECT_TRUE(parse_output(output_format("hermes"), tools(), false, text).incomplete) << text;
  }
}

TEST(OutputParser, DeepSeek) {
  const auto run = [](bool thinking, std::string_view text) {
    return parse_all_ways("deepseek", tools(), thinking, text);
  };
  EXPECT_EQ(run(true,
                "Weather.</think>One "
                "moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"a b\"}"
                "<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
                "｜tool▁calls▁end｜>"),
            expected("Weather.", "One moment.", {call("f", {{"s", "a b"}}), call("ping")}));
  EXPECT_EQ(run(false,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 3}\n```"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            expected("", "", {call("f", {{"n", 3}})}));
  EXPECT_EQ(run(false, "<｜tool▁call▁begin｜>ping<｜tool▁sep｜><｜tool▁call▁end｜>"),
            expected("", "", {call("ping")}));
  EXPECT_EQ(run(false, "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\""),
            expected("", "x", {}, true));
  // The fence is written in all ways, and also where the form has none.
  for (const char* body :
       {"function<｜tool▁sep｜>f\n{\"n\": 3}", "function<｜tool▁sep｜>f\n```\n{\"n\": 3}\n```",
        "f<｜tool▁sep｜>```json\n{\"n\": 3}\n```", "f<｜tool▁sep｜>{\"n\": 3}}"})
    EXPECT_EQ(run(false, std::string("<｜tool▁call▁begin｜>") + body + "<｜tool▁call▁end｜>"),
              expected("", "", {call("f", {{"n", 3}})}))
        << body;
  EXPECT_EQ(run(false, "<｜tool▁call▁begin｜>f {}"), expected("", "<｜tool▁call▁begin｜>f {}"));
}

TEST(OutputParser, MiniMaxAndFunctionary) {
  const auto minimax = [](std::string_view text) { return parse_all_ways("minimax", tools(), true, text); };
  const std::string call_f =
      "<invoke name=\"f\">\n<parameter name=\"s\">\"a\" <b></parameter>\n<parameter "
      "name=\"n\">3</parameter>\n"
      "</invoke>\n";
  const auto f = call("f", {{"s", "\"a\" <b>"}, {"n", 3}});
  EXPECT_EQ(minimax("so</think>A\n<minimax:tool_call>\n" + call_f + "</minimax:tool_call>"),
            expected("so", "A", {f}));
  EXPECT_EQ(minimax("</think><minimax:tool_call>\n" + call_f +
                    "<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>"),
            expected("", "", {f, call("ping")}));
  const std::string unquoted = "<minimax:tool_call>\n<invoke name=f>";
  EXPECT_EQ(minimax("</think>" + unquoted), expected("", unquoted));

  const auto functionary = [](std::string_view text) {
    return parse_all_ways("functionary", tools(), false, text);
  };
  EXPECT_EQ(functionary(R"(A <function=f>{"s": "</function>"}</function><function=ping>{}</function> B)"),
            expected("", "A\nB", {call("f", {{"s", "</function>"}}), call("ping")}));
  EXPECT_EQ(functionary("a <function= f() b"), expected("", "a <function= f() b"));
}

TEST(OutputParser, QwenCoderMaySlipIntoJson) {
  const auto run = [](bool thinking, std::string_view text) {
    return parse_all_ways("qwen3coder", tools(), thinking, text);
  };
  const std::string json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>";
  const std::string own = "<tool_call>\n<function=ping>\n</function>\n</tool_call>";
  EXPECT_EQ(run(false, "A\n" + json + "\n" + own), expected("", "A", {call("f", {{"n", 3}}), call("ping")}));
  EXPECT_EQ(run(true, "so " + json), expected("so", "", {call("f", {{"n", 3}})}));
  EXPECT_EQ(run(false, "<tool_call>{\"n\": 3}</tool_call>"),
            expected("", "<tool_call>{\"n\": 3}</tool_call>"));
  EXPECT_EQ(run(false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\""), expected("", "", {}, true));
}

TEST(OutputParser, Kimi) {
  EXPECT_EQ(
      parse_all_ways(
          "kimi", tools(), false,
          "On it.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
          "{\"n\":1}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}"
          "<|tool_call_end|><|tool_calls_section_end|>"),
      expected("", "On it.", {call("f", {{"n", 1}}), call("ping")}));
}

TEST(OutputParser, PlainAndThink) {
  const std::string text = " <think>a</think> <tool_call>ping</tool_call> ";
  EXPECT_EQ(parse_all_ways("plain", tools(), true, text),
            expected("", "<think>a</think> <tool_call>ping</tool_call>"));
  EXPECT_EQ(parse_all_ways("think", tools(), false, text), expected("a", "<tool_call>ping</tool_call>"));
  // Their calls are those of Hermes.
  for (const char* format : {"plain", "think"})
    EXPECT_EQ(parse_all_ways(format, tools(), false, "<tool_call>{\"name\":\"ping\"}</tool_call>"),
              expected("", "", {call("ping")}));
}

TEST(OutputParser, InvalidUtf8BecomesReplacementCharacters) {
  EXPECT_EQ(parse_all_ways("glm47", tools(), false,
                           "a\xff"
                           "b\xe2\x82"),
            expected("",
                     "a\uFFFD"
                     "b\uFFFD"));
  EXPECT_EQ(parse_all_ways("glm47", tools(), false,
                           "<tool_call>f<arg_key>a</arg_key><arg_value>[\"\xc3\"]</arg_value></tool_call>"),
            expected("", "", {call("f", {{"a", {"\uFFFD"}}})}));
}

TEST(OutputParser, ArgumentsKeepOrderAndLongNumbers) {
  const auto output =
      parse_output(output_format("hermes"), tools(), false,
                   "<tool_call>{\"name\":\"f\",\"arguments\":{ \"z\" : "
                   "12345678901234567890123,\n\"a\":[1.50, \"\\u00e9 \\\" }\"]}}</tool_call>");
  ASSERT_EQ(output.tool_calls.size(), 1u);
  EXPECT_EQ(output.tool_calls[0].arguments,
            "{\"z\":12345678901234567890123,\"a\":[1.50,\"\\u00e9 \\\" }\"]}");
}

TEST(OutputParser, AModelMayLeaveTheClosingTagToTheEndOfItsTurn) {
  const std::string f = "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value>";
  const struct {
    std::string text;
    std::vector<std::string> ended, cut;
  } cases[] = {
      {f, {"f{\"s\":\"x\"}"}, {"f{\"s\":\"x\" cut", "incomplete"}},
      {f + "\n</tool_c", {"f{\"s\":\"x\"}"}, {"f{\"s\":\"x\" cut", "incomplete"}},
      {"<tool_call>ping", {"ping{}"}, {"ping cut", "incomplete"}},
      {"<tool_call>ping\n", {"ping{}"}, {"ping cut", "incomplete"}},
      {"<tool_call>pin", {"pin cut", "incomplete"}, {"pin cut", "incomplete"}},
      {"<tool_call>", {"incomplete"}, {"incomplete"}},
      {f + "<arg_key>n", {"f{\"s\":\"x\" cut", "incomplete"}, {"f{\"s\":\"x\" cut", "incomplete"}},
      {"<tool_call>f<arg_key>s</arg_key><arg_value>x</arg",
       {"f{\"s\":\"x cut", "incomplete"},
       {"f{\"s\":\"x cut", "incomplete"}},
      // One closing tag for the value and the call; with more behind it, it is a part of the value.
      {"<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call>\n",
       {"f{\"s\":\"x\"}"},
       {"f{\"s\":\"x cut", "incomplete"}},
      {"<tool_call>f<arg_key>n</arg_key><arg_value>5</tool_call>",
       {"f{\"n\":5}"},
       {"f{\"n\": cut", "incomplete"}},
      {"<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call>y</arg_value>",
       {"f{\"s\":\"x</tool_call>y\"}"},
       {"f{\"s\":\"x</tool_call>y\" cut", "incomplete"}},
      {"<tool_call>f<arg_key>a</arg_key><arg_value> [1, {\"k\": \"v",
       {"f{\"a\":[1,{\"k\":\"v cut", "incomplete"},
       {"f{\"a\":[1,{\"k\":\"v cut", "incomplete"}},
      // The next call, or text, ends one that lacks its closing tag.
      {f + "<tool_call>ping</tool_call>", {"f{\"s\":\"x\"}", "ping{}"}, {"f{\"s\":\"x\"}", "ping{}"}},
      {f + " done", {"f{\"s\":\"x\"}"}, {"f{\"s\":\"x\"}"}},
      // A key without a value does not.
      {f + "<arg_key>n</arg_key>", {"f{\"s\":\"x\" cut", "incomplete"}, {"f{\"s\":\"x\" cut", "incomplete"}},
      {f + "<arg_key>n</arg_key></tool_call>",
       {"f{\"s\":\"x\" cut", "incomplete"},
       {"f{\"s\":\"x\" cut", "incomplete"}},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(told("glm47", one.text, true), one.ended) << one.text;
    EXPECT_EQ(told("glm47", one.text, false), one.cut) << one.text;
  }
  // In reasoning too, where what is no call stays text.
  for (const bool ended : {false, true}) {
    const auto output = parse_output(output_format("glm47"), tools(), true, "So " + f, 0, ended);
    EXPECT_EQ(output.tool_calls.size(), ended ? 1u : 0u);
    EXPECT_EQ(output.reasoning_content, ended ? "So" : "So " + f);
    EXPECT_FALSE(output.incomplete);
  }
}

/// Every text cut anywhere: what was told of its calls is a beginning of what is told of the whole text.
TEST(OutputParser, WhatIsToldOfACallStays) {
  const std::pair<const char*, std::string> cases[] = {
      {"glm47",
       "Now <tool_call>f<arg_key>s</arg_key><arg_value>a\"\n</arg</arg_value><arg_key>o</arg_key>"
       "<arg_value> null</arg_value><arg_key>a</arg_key><arg_value>[1]</arg_value></tool_call>"},
      {"hermes",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\\n\\ud83d\\ude00\", \"a\": [1.5, true]}, "
       "\"id\": 3}</tool_call>"},
      {"kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
       "{\"s\" : \"x\"}<|tool_call_end|><|tool_calls_section_end|>"},
      {"deepseek",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 3}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"llama3",
       "{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}; {\"name\": \"ping\", \"parameters\": {}}"}};
  for (const auto& [format, text] : cases) {
    const auto whole = parse_output(output_format(format), tools(), false, text, 0, true);
    ASSERT_GE(whole.tool_calls.size(), 1u) << format;
    EXPECT_TRUE(whole.tool_calls[0].whole && is_json(whole.tool_calls[0].arguments)) << format;
    size_t pieces = 0;
    for (size_t cut = 0; cut < text.size(); ++cut) {
      const auto part = parse_output(output_format(format), tools(), false, text.substr(0, cut), 1);
      if (part.tool_calls.empty()) continue;
      const ToolCall& call = part.tool_calls[0];
      // DeepSeek's older form has the word "function" where others have the name.
      EXPECT_TRUE(whole.tool_calls[0].name.starts_with(call.name) || call.arguments.empty()) << call.name;
      EXPECT_TRUE(whole.tool_calls[0].arguments.starts_with(call.arguments)) << call.arguments;
      if (!call.whole) pieces += call.arguments.empty() ? 0 : 1;
      EXPECT_TRUE(call.arguments.empty() || is_json(json_closed(call.arguments))) << call.arguments;
    }
    EXPECT_GT(pieces, 3u) << format;  // arguments came before their end
  }
}

/// All that was told, in order, the end included where there is one.
std::string events_of(OutputParser& parser, std::string_view text, size_t chunk, bool finishes) {
  std::string out;
  OutputEvent::Kind last = OutputEvent::Kind::CallEnd;
  const auto add = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      const bool goes_on = event.kind == last && event.kind != OutputEvent::Kind::Call;
      if (!goes_on) out += "\n" + std::string(1, "RCTAE"[static_cast<int>(event.kind)]) + ":";
      out += event.text;
      last = event.kind;
    }
  };
  for (size_t at = 0; at < text.size(); at += chunk) add(parser.push(text.substr(at, chunk)));
  if (finishes) add(parser.finish(true));
  return out;
}

/// Texts at random, cut anywhere: what was told before the cut is the beginning of what the whole text tells,
/// in any pieces.
TEST(OutputParser, EventsOfABeginningAreTheBeginningOfEvents) {
  std::mt19937 random(23);
  for (const OutputFormat& format : output_formats()) {
    std::vector<std::string> pieces = format.name == "qwen3coder" ? kQwenPieces : kGlmPieces;
    for (const std::string_view tag : {format.call_open, format.call_open, format.call_close,
                                       format.separator, format.section_open, format.section_close})
      if (!tag.empty()) pieces.emplace_back(tag);
    if (format.calls == CallSyntax::Json) {
      pieces.resize(4);
      for (const char* piece : {"{\"name\": \"f\", \"arguments\": {\"s\": \"",
                                "\"name\": \"ping\"",
                                "{\"n\": [1",
                                "]",
                                "}}",
                                "{}",
                                "null",
                                ", ",
                                "}",
                                "\"",
                                "\\n",
                                "\\ud800",
                                "1.5",
                                "functions.f:0",
                                "function",
                                "```json\n",
                                "\n```",
                                "f",
                                "\xe2\x96",
                                "\x81"})
        pieces.emplace_back(piece);
      for (const std::string_view tag : {format.call_open, format.call_close, format.separator})
        if (!tag.empty()) pieces.emplace_back(tag);
    }
    for (int i = 0; i < 400; ++i) {
      const std::string text = soup(random, pieces, 1 + random() % 20);
      const bool thinking = random() % 4 == 0;
      OutputParser all(format, tools(), thinking), bytes(format, tools(), thinking),
          part(format, tools(), thinking);
      const std::string whole = events_of(all, text, text.size() + 1, true);
      ASSERT_EQ(events_of(bytes, text, 1 + random() % 5, true), whole) << format.name << ": " << text;
      const std::string before =
          events_of(part, text.substr(0, random() % (text.size() + 1)), 1 + random() % 9, false);
      ASSERT_TRUE(whole.starts_with(before)) << format.name << ": " << text << "\n"
                                             << before << "\nof" << whole;
    }
  }
}

TEST(OutputParser, HermesKnowsOtherNamesOfArguments) {
  for (const char* key : {"arguments", "parameters", "args", "input"}) {
    const std::string begin = std::string("<tool_call>{\"name\":\"f\",\"") + key + "\":";
    EXPECT_EQ(told("hermes", begin + "{\"n\":1}}</tool_call>", false),
              std::vector<std::string>{"f{\"n\":1}"});
    EXPECT_EQ(told("hermes", begin + "\"{ \\\"n\\\": 1}\"}</tool_call>", false),
              std::vector<std::string>{"f{\"n\":1}"});
    for (const char* none : {"null", "\"\"", "{}", "\"{}\""})
      EXPECT_EQ(told("hermes", begin + none + "}</tool_call>", false), std::vector<std::string>{"f{}"});
    EXPECT_TRUE(told("hermes", begin + "3}</tool_call>", false).empty());
  }
  EXPECT_EQ(told("hermes", "<tool_call>{\"arguments\":{\"n\":1},\"name\":\"f\"}</tool_call>", false),
            std::vector<std::string>{"f{\"n\":1}"});
  // A brace too few, a line break in a string.
  EXPECT_EQ(told("hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a\nb\"}</tool_call>", false),
            std::vector<std::string>{"f{\"s\":\"a\\nb\"}"});
  EXPECT_EQ(told("hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a\",}}</tool_call>", true),
            (std::vector<std::string>{"f{\"s\":\"a\", cut", "incomplete"}));
}

TEST(OutputParser, KimiSlips) {
  for (const char* name : {"functions.f:12", "f:0", "f", "functions.f"})
    EXPECT_EQ(
        told("kimi",
             std::string("<|tool_call_begin|>") + name + "<|tool_call_argument_begin|>{}<|tool_call_end|>",
             false),
        std::vector<std::string>{"f{}"});
  EXPECT_EQ(told("kimi", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>null<|tool_call_end|>", false),
            std::vector<std::string>{"f{}"});
  EXPECT_EQ(parse_all_ways("kimi", tools(), false,
                           "a<|tool_call_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"
                           "<|tool_call_end|><|tool_call_section_end|>"),
            expected("", "a", {call("f")}));
}

TEST(OutputParser, LlamaCallsInPlaceOfContent) {
  const auto run = [](std::string_view text) { return parse_all_ways("llama3", tools(), false, text); };
  EXPECT_EQ(run("{\"name\": \"f\", \"parameters\": {\"n\": 1}}"), expected("", "", {call("f", {{"n", 1}})}));
  EXPECT_EQ(run("<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}"), expected("", "", {call("ping")}));
  EXPECT_EQ(run(" {\"type\": \"function\", \"name\": \"ping\"}\n{\"name\": \"f\"}"),
            expected("", "", {call("ping"), call("f")}));
  for (const char* text : {"{\"name\": \"what\", \"parameters\": {}}", "{\"a\": 1}", "{}", "{", "{\"na",
                           "I call {\"name\": \"ping\"}"})
    EXPECT_EQ(run(text), expected("", text));
}

// The first value of a key has been handed on when another one comes: both are written, in their order, so
// that readers of JSON take the last one, as they do of a text that was read at once.
TEST(OutputParser, OfARepeatedKeyTheLastValueCounts) {
  const auto argument = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
  };
  const std::string text =
      "<tool_call>f" + argument("s", "one") + argument("n", "1") + argument("s", "two") + "</tool_call>";
  EXPECT_EQ(parse_all_ways("glm47", tools(), false, text),
            expected("", "", {call("f", {{"n", 1}, {"s", "two"}})}));
  EXPECT_EQ(parse_output(output_format("glm47"), tools(), false, text).tool_calls[0].arguments,
            R"({"s":"one","n":1,"s":"two"})");
}

TEST(OutputParser, GigaChatCallsInATurnOfTheirOwn) {
  EXPECT_EQ(
      parse_all_ways("gigachat3", tools(), false,
                     "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": "
                     "{\"n\": 1}}<|message_sep|>\n\n"),
      expected("", "I look.", {call("f", {{"n", 1}})}));
  EXPECT_EQ(parse_all_ways("gigachat3", tools(), false, "Hi.<|message_sep|>\n\n"), expected("", "Hi."));
  EXPECT_EQ(parse_all_ways(
                "gigachat3.1", tools(), false,
                "I look.<|function_call|>{\"name\": \"f\", \"arguments\": {\"n\": 1}}<|message_sep|>\n\n"),
            expected("", "I look.", {call("f", {{"n", 1}})}));
}

TEST(OutputFormat, IsChosenByTheTagsOfTheTemplate) {
  const auto of = [](std::string_view text) { return output_format_of_template(text).name; };
  EXPECT_EQ(of("... <tool_call>{name}<arg_key>k</arg_key> ... </think>"), "glm47");
  EXPECT_EQ(of("'<tool_call>\\n{\"name\": \"' <think>"), "hermes");
  EXPECT_EQ(of("'<tool_calls>[' ... ']</tool_calls>'"), "tool_calls");
  EXPECT_EQ(of("'[TOOL_CALLS]' + name + '[ARGS]'"), "mistral");
  EXPECT_EQ(of("'[TOOL_CALLS] ['"), "mistral_list");
  EXPECT_EQ(of("function_call=\"<|function_call|>\""), "gigachat3.1");
  EXPECT_EQ(of("'<function=' + name + '>' + arguments"), "functionary");
  EXPECT_EQ(of("'<minimax:tool_call>' '</think>'"), "minimax");
  EXPECT_EQ(of("'<TOOLCALL>[' '</think>'"), "nemotron");
  EXPECT_EQ(of("'\\n<tool_call>\\n<function=' + name + '>\\n' '<parameter='"), "qwen3coder");
  EXPECT_EQ(of("<｜tool▁calls▁begin｜> </think>"), "deepseek");
  EXPECT_EQ(of("<|tool_calls_section_begin|>"), "kimi");
  EXPECT_EQ(of("content.split('</think>')"), "think");
  EXPECT_EQ(of("User: {{ x }}"), "plain");
  EXPECT_EQ(of("Respond in the format {\"name\": function name, \"parameters\": d}"), "llama3");
  EXPECT_TRUE(ends_in_thinking(output_format("glm47"), "<|assistant|><think>"));
  EXPECT_TRUE(ends_in_thinking(output_format("think"), "<think>\n"));
  EXPECT_FALSE(ends_in_thinking(output_format("glm47"), "<|assistant|></think>"));
  EXPECT_FALSE(ends_in_thinking(output_format("glm47"), ""));
  EXPECT_FALSE(ends_in_thinking(output_format("plain"), "<think>"));
  try {
    output_format("x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr(
            "glm47, qwen3coder, minimax, functionary, kimi, deepseek, tool_calls, nemotron, hermes, llama3, "
            "gigachat3, gigachat3.1, mistral, mistral_list, harmony, think, plain"));
  }
}

/// Texts of a megabyte that a careless parser reads again and again.
TEST(OutputParser, TimeIsLinear) {
  const size_t size = 1000000;
  const std::string key_chain = "<tool_call>f<arg_key>k</arg_key><arg_value>";
  const std::vector<std::string> texts = {
      repeated("a ", size),
      repeated(" ", size) + "a",
      repeated("<", size),
      repeated("</thin", size),
      repeated("<tool_call>", size),
      repeated("<tool_call> f ", size),
      repeated("<tool_call>f<arg_key>", size) + "</arg_key>X",
      repeated(key_chain, size) + "</arg_value>X",
      repeated("<tool_call>f<arg_key>k</arg_key><arg_value></arg_value>", size) + "X",
      key_chain + repeated("<tool_call>f<arg_key>a</arg_key><arg_value>b</arg_value>", size) + "</think>",
      "<tool_call>f" + repeated("<arg_key><tool_call>f</arg_key><arg_value><tool_call>f</arg_value>", size) +
          "X",
      repeated("<tool_call>f<arg_key>", size) + repeated("</arg_key>", size),
      repeated("<tool_call>{", size),
      repeated("<tool_call>{\"", size),
      "<tool_call>{\"a\":\"" + repeated("<tool_call>{", size) + "\"}x",
      "<tool_call>{\"a\":\"" + repeated("<tool_call>{\\\"a\\\":", size) + "\"}x",
      repeated("<tool_call>{\"<tool_call>{\":1,\"a\":[", size),
      "<tool_call>" + repeated("[", size),
      "<tool_call>{\"name\":\"f\",\"arguments\":" + repeated("[", size),
      "<tool_call>f<arg_key>o</arg_key><arg_value>" + repeated(" ", size),
      repeated("<tool_call>f<arg_key>s</arg_key><arg_value>b</arg_value><arg_key>", size) + "</arg_key>X",
      repeated("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,,", size),
      "{\"name\":\"f\",\"parameters\":{\"a\":\"" + repeated("\\ud83d", size),
      "<tool_call>{\"name\":\"f\",\"arguments\":{" + repeated("\"k\":1,", size) + "\"z\":1}}</tool_call>",
      repeated("<function=", size),
      repeated("<function=f>", size),
      repeated("<function=f><parameter=", size) + ">",
      repeated("<tool_call><function=f><parameter=s></function>", size) + "</parameter>X",
      repeated("<function=f><parameter=s>\n<parameter=s", size) + "</parameter>X",
      repeated("<function=f>\n<parameter=s>\nx\n</parameter>", size) + "X",
      "<function=f><parameter=s>" + repeated("</function>\n", size),
      "<function=f><parameter=s>" + repeated("\n", size),
  };
  // Tags of another format are text, or end a call at once, as <tool_call> and words do above.
  const auto concerns = [](std::string_view format, const std::string& text) {
    return (format == "glm47" || text.find("<arg_key>") == std::string::npos) &&
           (format == "qwen3coder" || text.find("<function=") == std::string::npos);
  };
  for (const char* format : {"glm47", "qwen3coder", "hermes", "llama3"}) {
    for (const bool thinking : {false, true}) {
      for (const std::string& text : texts) {
        if (!concerns(format, text)) continue;
        const double time = seconds([&] { parse_output(output_format(format), tools(), thinking, text, 1); });
        EXPECT_LT(time, 1 * kSlowdown) << format << " " << thinking << " " << text.substr(0, 60);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::text
