// One sequence from prompt to text: the loop that steps an executable, samples, and hands out whole
// characters. Knows tokens and a Program's steps; which backend runs them is not its business.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "engine/sampler.h"
#include "program/backend.h"
#include "text/tokenizer.h"

namespace sluice::engine {

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_tokens = -1;  ///< -1: until the model ends or the context is full
  SamplingParams sampling;
  std::vector<std::string> stops;
};

enum class Finish : uint8_t { EndToken, StopString, Length, ContextFull, Cancelled };

struct Result {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t prompt_ns = 0;  ///< until the first token was there
  int64_t decode_ns = 0;  ///< all tokens after the first
  Finish finish = Finish::Length;
};

class Generator {
 public:
  /// The executable must have been compiled for at least `max_rows` rows, one output row and the pages of
  /// `context` tokens.
  Generator(program::Executable& executable, const text::Tokenizer& tokenizer, int64_t context,
            int64_t max_rows);

  int64_t context() const { return context_; }
  /// Runs a request and calls on_text with each piece of text; false from it cancels. Throws Error when the
  /// prompt is empty or does not fit into the context.
  Result run(const Request& request, const std::function<bool(std::string_view)>& on_text);

 private:
  void prefill(const std::vector<int32_t>& prompt);
  void step();

  program::Executable& executable_;
  const text::Tokenizer& tokenizer_;
  int64_t context_, max_rows_;
  KvPool pool_;
  Batch batch_;
  std::vector<int32_t> pages_;
  std::vector<float> logits_;
};

}  // namespace sluice::engine
