// Limits on reasoning: a model that would go on thinking is made to close its thoughts, at the right token
// and with the right tag, and nothing else of its answer is touched.
#include "text/thinking_budget.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/script_executable.h"
#include "text/json_model.h"

namespace sluice::text {
namespace {

/// What a model writes that wants to write `wish`: the tokens of that, and before each of them what is
/// imposed.
std::string write(const Tokenizer& tokenizer, TokenConstraint& constraint, const std::string& wish) {
  std::vector<uint32_t> bits((static_cast<size_t>(tokenizer.size()) + 31) / 32);
  std::string text;
  for (const int32_t token : tokenizer.encode(wish, true)) {
    for (int32_t next = -1; next != token;) {
      next = token;
      if (constraint.allowed(bits) && !has(bits, token)) {
        next = 0;
        while (next < tokenizer.size() && !has(bits, next)) ++next;
        EXPECT_LT(next, tokenizer.size()) << "nothing may follow " << text;
        EXPECT_FALSE(constraint.accept(token)) << "masked, but taken";
      }
      EXPECT_TRUE(constraint.accept(next)) << "allowed, but refused behind " << text;
      text += tokenizer.bytes(next, true);
      if (testing::Test::HasFailure()) return text;
    }
  }
  return text;
}

std::string limited(int64_t tokens, const std::string& wish, bool thinking = true,
                    std::string_view format = "glm47") {
  const Tokenizer tokenizer = test::byte_tokenizer();
  return write(tokenizer, *limit_thinking(tokens, tokenizer, output_format(format), thinking), wish);
}

TEST(ThinkingBudget, ClosesTheThoughtsWhenItIsSpent) {
  EXPECT_EQ(limited(4, "abcdefgh"), "abcd</think>efgh");
  EXPECT_EQ(limited(8, "abcdefgh"), "abcdefgh");
  EXPECT_EQ(limited(0, "abc"), "</think>abc");
}

TEST(ThinkingBudget, LeavesShorterThoughtsAlone) {
  EXPECT_EQ(limited(40, "ab</think>cdefgh and so on, much longer than forty tokens are"),
            "ab</think>cdefgh and so on, much longer than forty tokens are");
  // A call ends them too: a tag must not fall into its arguments.
  const std::string call =
      "ab<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>";
  EXPECT_EQ(limited(20, call), call);
}

TEST(ThinkingBudget, ATagThatBeginsWhenTheBudgetEndsIsWrittenAgain) {
  EXPECT_EQ(limited(4, "ab</but"), "ab</</think>but");
}

TEST(ThinkingBudget, CharactersAreFinishedFirst) {
  EXPECT_EQ(limited(2, "a\xE6\xB0\xB4\xE8\xBD\xA6"), "a\xE6\xB0\xB4</think>\xE8\xBD\xA6");
}

TEST(ThinkingBudget, ThoughtsThatTheModelOpensItself) {
  EXPECT_EQ(limited(3, "\n<think>abcdef", false), "\n<think>abc</think>def");
  EXPECT_EQ(limited(3, "Say <think>abcdef", false), "Say <think>abcdef");
  EXPECT_EQ(limited(3, "<thanks>abcdef", false), "<thanks>abcdef");
}

TEST(ThinkingBudget, AGrammarFollowsBehindIt) {
  const Model& model = json_model();
  const OutputFormat& format = output_format("glm47");
  const nlohmann::ordered_json schema = {{"type", "array"}, {"items", {{"type", "integer"}}}};
  const auto make = [&](int64_t tokens) {
    return limit_thinking(tokens, model.tokenizer, format, true,
                          json_schema_constraint(schema, model.place(&format, true)));
  };
  const auto constraint = make(0);
  EXPECT_FALSE(constraint->may_end());
  const auto copy = constraint->clone();
  EXPECT_EQ(write(model.tokenizer, *constraint, "[12,3]"), "</think>[12,3]");
  EXPECT_TRUE(constraint->may_end());
  EXPECT_EQ(write(model.tokenizer, *copy, "[4]"), "</think>[4]") << "a clone goes its own way";
  const size_t thoughts = model.tokenizer.encode("tags and items", true).size();
  EXPECT_EQ(write(model.tokenizer, *make(static_cast<int64_t>(thoughts)), "tags and items[1]"),
            "tags and items</think>[1]");
}

}  // namespace
}  // namespace sluice::text
