// Executables without a model: they say what a test wants said. And a vocabulary of bytes to read it with.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "program/backend.h"
#include "program/builder.h"
#include "text/tokenizer.h"

namespace sluice::test {

/// The bytes as a vocabulary, and one token that ends a turn.
inline text::Tokenizer byte_tokenizer() {
  std::vector<std::string> names;
  for (int i = 0; i < 256; ++i) {
    const bool printable = (i >= 33 && i < 127) || (i >= 161 && i < 173) || i >= 174;
    int code = i;
    if (!printable) {
      code = 256;
      for (int j = 0; j < i; ++j) code += !((j >= 33 && j < 127) || (j >= 161 && j < 173) || j >= 174);
    }
    names.push_back(
        code < 128 ? std::string(1, static_cast<char>(code))
                   : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))});
  }
  names.emplace_back("<|endoftext|>");
  text::Vocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "glm4";
  vocab.tokens.assign(names.begin(), names.end());
  vocab.types.assign(257, text::TokenType::Normal);
  vocab.types[256] = text::TokenType::Control;
  vocab.eos = 256;
  return text::Tokenizer(vocab);
}

/// An executable that computes nothing; `run` says bytes, or the end token, by their logits.
class Speaker : public program::Executable {
 public:
  /// states: the program has one, which run() may keep.
  explicit Speaker(bool states = false) {
    program::Builder b(program_);
    const auto table = b.weight("table", quant::Type::F32, 1, kTokens, 8);
    auto x = b.embed(table);
    if (states)
      x = b.causal_conv(x, b.weight("taps", quant::Type::F32, 1, 8, 2), b.state("state", 1, 1, 8), 0);
    b.set_output(b.matmul(b.gather_rows(x), table));
  }
  program::Ticket submit(const program::Step& step) override {
    logits_.assign(static_cast<size_t>(step.input.outputs() * kTokens), 0.0f);
    said_ = {.logits = logits_};
    run(step, said_);
    rows_.assign(static_cast<size_t>(step.input.outputs()), {});
    for (size_t i = 0; i < rows_.size(); ++i)
      rows_[i].logits = std::span(logits_).subspan(i * kTokens, kTokens);
    return {};
  }
  program::StepResult collect(program::Ticket) override { return {rows_, said_.stopped, said_.paused}; }
  void peek(program::TensorId, int64_t, std::span<float>) override {}
  void poke(program::TensorId, int64_t, std::span<const float>) override {}
  const program::Program& program() const override { return program_; }
  std::vector<program::BoundKernel> bound() const override { return {}; }
  int64_t memory_bytes() const override { return 0; }

 protected:
  static constexpr int64_t kTokens = 257;
  /// What a step says: logits [outputs, kTokens], at first zeros.
  struct Said {
    std::span<float> logits = {};
    bool stopped = false, paused = false;
  };
  virtual void run(const program::Step& step, Said& said) = 0;
  /// Byte `position` of `text` is the likeliest token of wanted row `row` by far, behind its end the end
  /// token.
  static void put(const Said& said, int64_t row, const std::string& text, size_t position) {
    const size_t id = position < text.size() ? static_cast<unsigned char>(text[position]) : kTokens - 1;
    said.logits[static_cast<size_t>(row * kTokens) + id] = 50.0f;
  }

 private:
  program::Program program_;
  Said said_;
  std::vector<float> logits_;
  std::vector<program::RowResult> rows_;
};

/// Answers the n-th wanted row with the n-th byte of a script, then with the end token; notes what it was
/// asked.
class Script : public Speaker {
 public:
  explicit Script(std::string reply) : reply_(std::move(reply)) {}
  void run(const program::Step& step, Said& said) override {
    const program::StepInput& input = step.input;
    for (int64_t r = 0; r < input.rows(); ++r) {
      tokens.push_back(input.tokens[static_cast<size_t>(r)]);
      positions.push_back(input.positions[static_cast<size_t>(r)]);
    }
    most_rows = std::max(most_rows, input.rows());
    if (input.outputs() > 0) put(said, 0, reply_, next_++);
  }

  std::vector<int32_t> tokens, positions;
  int64_t most_rows = 0;

 private:
  std::string reply_;
  size_t next_ = 0;
};

}  // namespace sluice::test
