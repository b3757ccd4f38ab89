// A vocabulary for JSON with the tags of all formats, for the tests of constraints and their fuzzer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/constraint.h"
#include "text/tokenizer.h"
#include "text/toy_vocab.h"

namespace sluice::text {

/// A vocabulary that knows JSON's most usual pairs and GLM's tags, those that begin a turn as control tokens.
inline ToyVocab json_vocab(int pairs = 260) {
  ToyVocab vocab;
  std::string text;
  for (int i = 0; i < 6; ++i)
    text +=
        "{\"name\": \"The mill by the river\", \"tags\": [\"a\", \"b\"], \"age\": 1234, \"x\": null, \"ok\": "
        "true}\n"
        "{\"a\":1,\"b\":[{\"c\":\"d\"},{\"c\":\"\"}],\"e\":-0.5e-07,\"f\":false}\n"
        "{\n  \"items\": [\n    {\n      \"kind\": \"cat\"\n    },\n    2024\n  ]\n}\n\\n\\\"\\u00e9 水车é "
        "<b></b>\n";
  train(vocab, text, pairs);
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

}  // namespace sluice::text
