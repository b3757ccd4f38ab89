// One sequence from prompt to text: the loop that steps an executable, samples, and hands out whole
// characters. The rows of the last request stay in the cache for a next one that begins alike. Knows tokens
// and a Program's steps; which backend runs them is not its business.
#pragma once

#include <atomic>
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
  bool show_special = false;                  ///< control tokens become text too: their names
  const std::atomic<bool>* cancel = nullptr;  ///< once true, the request ends after the step that runs
};

enum class Finish : uint8_t { EndToken, StopString, Length, ContextFull, Cancelled };

struct Result {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< of the prompt: their rows were in the cache
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
  /// Runs a request and calls on_text with each token's piece of text (empty while it is held back) and then
  /// with what is left; false from it cancels. Tokens that the prompt and the last request begin with are not
  /// computed again. Throws Error when the prompt is empty or does not fit into the context.
  Result run(const Request& request, const std::function<bool(std::string_view)>& on_text);

 private:
  bool prefill(const Request& request);
  void step();

  program::Executable& executable_;
  const text::Tokenizer& tokenizer_;
  int64_t context_, max_rows_;
  KvPool pool_;
  Batch batch_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> cached_;  ///< the tokens whose rows are in the cache, from position 0 on
  std::vector<float> logits_;
};

}  // namespace sluice::engine
