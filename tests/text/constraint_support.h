// What the tests of constraints share: a vocabulary with the tags of all formats, ways of following a
// constraint, and masks found the slow way.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "text/constraint.h"
#include "text/tokenizer.h"
#include "text/toy_vocab.h"

namespace sluice::text {

/// A vocabulary that knows JSON's usual pairs and GLM's tags, those that begin a turn as control tokens.
inline ToyVocab json_vocab() {
  ToyVocab vocab;
  std::string text;
  for (int i = 0; i < 6; ++i)
    text +=
        "{\"name\": \"The mill by the river\", \"tags\": [\"a\", \"b\"], \"age\": 1234, \"x\": null, \"ok\": "
        "true}\n"
        "{\"a\":1,\"b\":[{\"c\":\"d\"},{\"c\":\"\"}],\"e\":-0.5e-07,\"f\":false}\n"
        "{\n  \"items\": [\n    {\n      \"kind\": \"cat\"\n    },\n    2024\n  ]\n}\n\\n\\\"\\u00e9 水车é "
        "<b></b>\n";
  train(vocab, text, 260);
  for (const char* name : {"<|endoftext|>", "<|user|>", "<|observation|>", "</think>", "<arg_value>"})
    vocab.add(name, TokenType::Control);
  for (const char* name :
       {"<think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "</arg_value>"})
    vocab.add(name, TokenType::UserDefined);
  return vocab;
}

/// A tokenizer with its ConstraintVocabulary.
struct Model {
  explicit Model(const Vocab& vocab)
      : tokenizer(vocab), vocabulary(std::make_shared<ConstraintVocabulary>(tokenizer)) {}
  AnswerPlace place(const OutputFormat* format = nullptr, bool thinking = false) const {
    return {vocabulary, format, thinking};
  }
  std::vector<uint32_t> words() const {
    return std::vector<uint32_t>((static_cast<size_t>(tokenizer.size()) + 31) / 32);
  }

  Tokenizer tokenizer;
  std::shared_ptr<const ConstraintVocabulary> vocabulary;
};

inline const Model& json_model() {
  static const Model model(json_vocab().vocab());
  return model;
}

inline bool has(const std::vector<uint32_t>& bits, int32_t token) {
  return (bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

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
/// Once it is `patience` tokens long, the walk takes what closes strings, lists and objects where it may.
inline Walk random_walk(const Model& model, TokenConstraint& constraint, std::mt19937& random,
                        int patience = 60) {
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
