// Qwen3-Coder's calls: as the template writes them, as the model slips, and while they are written.
#include <gtest/gtest.h>

#include "text/output_support.h"

namespace sluice::text {
namespace {

TEST(Qwen3Coder, CallsAsTheTemplateWritesThem) {
  const auto run = [](std::string_view text) { return parse_all_ways("qwen3coder", tools(), false, text); };
  const std::string two =
      "I look.\n\n<tool_call>\n<function=f>\n<parameter=s>\n  two\n\n<b>lines\n</parameter>\n"
      "<parameter=n>\n5\n</parameter>\n<parameter=e>\nTrue\n</parameter>\n<parameter=a>\n[1, "
      "{\"k\": null}]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n"
      "</tool_call>";
  EXPECT_EQ(
      run(two),
      expected("", "I look.",
               {call("f", {{"s", "  two\n\n<b>lines"}, {"n", 5}, {"e", true}, {"a", {1, {{"k", nullptr}}}}}),
                call("ping")}));
  // Of the newlines around a value one is none of it; a value may be empty, and without lines of its own.
  const auto value = [](const std::string& text) {
    return "<tool_call>\n<function=f>\n<parameter=s>" + text + "</parameter>\n</function>\n</tool_call>";
  };
  EXPECT_EQ(run(value("\n\na\n\n")), expected("", "", {call("f", {{"s", "\na\n"}})}));
  for (const char* empty : {"", "\n", "\n\n"})
    EXPECT_EQ(run(value(empty)), expected("", "", {call("f", {{"s", ""}})}));
  EXPECT_EQ(run(value("a")), expected("", "", {call("f", {{"s", "a"}})}));
  EXPECT_EQ(run(value("\n</function>\n")), expected("", "", {call("f", {{"s", "</function>"}})}));
}

TEST(Qwen3Coder, LeavesTagsOut) {
  const auto run = [](std::string_view text, bool thinking = false) {
    return parse_all_ways("qwen3coder", tools(), thinking, text);
  };
  const nlohmann::json f = call("f", {{"s", "x"}});
  const std::string body = "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>";
  EXPECT_EQ(run("I call.\n\n" + body + "\n</tool_call>"), expected("", "I call.", {f}));
  EXPECT_EQ(run(body + "\n" + body + "\nDone."), expected("", "Done.", {f, f}));
  EXPECT_EQ(run("<tool_call>\n" + body + "\n" + body + "\n</tool_call>"), expected("", "", {f, f}));
  EXPECT_EQ(run("<tool_call>\n" + body), expected("", "", {f}));
  EXPECT_EQ(run("<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>"),
            expected("", "", {f}));
  EXPECT_EQ(run("hm " + body + "\n</tool_call> so</think>ok", true), expected("hm\nso", "ok", {f}));
  EXPECT_EQ(run("hm " + body + " so</think>ok", true), expected("hm " + body + " so", "ok"));
  // The tag that closes a value.
  EXPECT_EQ(run("<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>"),
            expected("", "", {f}));
  EXPECT_EQ(run("<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=n>\n1\n</parameter>\n</function>"
                "\n</tool_call>"),
            expected("", "", {call("f", {{"s", "x"}, {"n", 1}})}));
  for (const char* end : {"</function>", "\n</function>", "\n</function>\n", "\n</function>\n</tool_call>",
                          "</tool_call>", "\n</function>  </tool_call>\n"})
    EXPECT_EQ(told("qwen3coder", std::string("<tool_call>\n<function=f>\n<parameter=s>\nx") + end, true),
              std::vector<std::string>{"f{\"s\":\"x\"}"})
        << end;
  EXPECT_EQ(told("qwen3coder", "<tool_call>\n<function=f>\n<parameter=s>\nx\n", true),
            (std::vector<std::string>{"f{\"s\":\"x cut", "incomplete"}));
  // What is no call stays as it is.
  for (const char* text :
       {"The form is <function=NAME>.", "<function=nope>\n<parameter=s>\nx\n</parameter>\n</function>",
        "<function=", "<function=pin", "Write <tool_call> and then <function= f>",
        "<tool_call>\n{\"nome\": \"ping\"}\n</tool_call>", "<function=f> and so on"})
    EXPECT_EQ(run(text), expected("", text));
  EXPECT_EQ(run("<tool_call>\n<function=pin"), expected("", "", {}, true));
}

TEST(Qwen3Coder, StringsAreStreamed) {
  OutputParser parser(output_format("qwen3coder"), tools(), false);
  const auto push = [&](std::string_view bytes) {
    std::string shown;
    for (const OutputEvent& event : parser.push(bytes))
      shown += std::string(1, "RCTAE"[static_cast<int>(event.kind)]) + ":" + event.text + "|";
    return shown;
  };
  EXPECT_EQ(push("<tool_call>\n<function=f>\n<parameter=s>"), "T:f|A:{\"s\":|");
  EXPECT_EQ(push("\nfirst\n"), "A:\"first|");
  EXPECT_EQ(push("second </par"), "A:\\nsecond |");
  EXPECT_EQ(push("king>\n</function>\n"), "A:</parking>|");
  EXPECT_EQ(push("more\n</parameter>"), "A:\\n</function>\\nmore\"|");
  EXPECT_EQ(push("\n<parameter=n>\n12"), "A:,\"n\":|");
  EXPECT_EQ(push("\n</parameter>\n</function>\n</tool_call>"), "A:12}|E:|");
}

}  // namespace
}  // namespace sluice::text
