// What the tests of constraints share: ways of following a constraint, and masks found the slow way.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/json_model.h"

namespace sluice::text {

/// Whether the text, token by token, is allowed and may end there. Says where it is not.
inline testing::AssertionResult passes(const Model& model, TokenConstraint& constraint,
                                       const std::string& text, bool special = false) {
  std::vector<uint32_t> bits = model.words();
  std::string before;
  for (const int32_t token : model.tokenizer.encode(text, special)) {
    constraint.allowed(bits);
    const std::string bytes(model.tokenizer.bytes(token, true));
    if (!has(bits, token))
      return testing::AssertionFailure() << "\"" << bytes << "\" is masked behind: " << before;
    if (!constraint.accept(token))
      return testing::AssertionFailure() << "\"" << bytes << "\" is refused behind: " << before;
    before += bytes;
  }
  if (!constraint.may_end()) return testing::AssertionFailure() << "may not end: " << before;
  return testing::AssertionSuccess();
}

/// A walk of random allowed tokens until the text ends.
struct Walk {
  std::string text;
  bool ended = false;
  int tokens = 0;
};
/// Once it is `patience` tokens long, the walk takes what closes strings, lists and objects where it may;
/// `closer` is what the model has for that beside the usual tokens.
inline Walk random_walk(const Model& model, TokenConstraint& constraint, std::mt19937& random,
                        int patience = 60, std::string_view closer = {}) {
  Walk walk;
  std::vector<uint32_t> bits = model.words();
  std::vector<int32_t> choices, closing;
  for (; walk.tokens < patience * 20; ++walk.tokens) {
    constraint.allowed(bits);
    if (constraint.may_end() && (walk.tokens > patience || random() % 3 == 0)) {
      walk.ended = true;
      return walk;
    }
    choices.clear();
    closing.clear();
    for (int32_t token = 0; token < model.tokenizer.size(); ++token) {
      if (!has(bits, token) || model.tokenizer.ends_generation(token)) continue;
      choices.push_back(token);
      const std::string_view bytes = model.tokenizer.bytes(token, true);
      for (const char* end : {"\"", "}", "]", "null", "1", "</think>", "</arg_value>", "</tool_call>"})
        if (bytes == end) closing.push_back(token);
      if (bytes == closer) closing.push_back(token);
    }
    walk.ended = choices.empty() && constraint.may_end();
    if (choices.empty()) return walk;
    int32_t token = choices[random() % choices.size()];
    if (walk.tokens > patience && !closing.empty()) token = closing[random() % closing.size()];
    walk.text += model.tokenizer.bytes(token, true);
    EXPECT_TRUE(constraint.accept(token)) << walk.text;
  }
  return walk;
}

/// Compares a mask with what accept() says to each token.
inline void expect_exact_mask(const Model& model, TokenConstraint& constraint, const std::string& context) {
  std::vector<uint32_t> bits = model.words();
  constraint.allowed(bits);
  for (int32_t token = 0; token < model.tokenizer.size(); ++token)
    ASSERT_EQ(has(bits, token), constraint.clone()->accept(token))
        << "token \"" << model.tokenizer.bytes(token, true) << "\" behind: " << context;
}

}  // namespace sluice::text
