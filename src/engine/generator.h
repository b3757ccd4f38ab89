// One sequence from prompt to text: the loop that steps an executable, samples, and hands out whole
// characters. The rows of the last request stay in the cache for a next one that begins alike. Knows tokens
// and a Program's steps; which backend runs them is not its business.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "engine/request.h"
#include "program/backend.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Generator {
 public:
  /// The executable must have been compiled for at least `max_rows` rows, one output row and the pages of
  /// `context` tokens.
  Generator(program::Executable& executable, const text::Tokenizer& tokenizer, int64_t context,
            int64_t max_rows);

  int64_t context() const { return context_; }
  /// Runs a request and calls on_text with each token's piece of text (empty while it is held back) and then
  /// with what is left; false from it cancels. Tokens that the prompt and the last request begin with are not
  /// computed again. Once `cancel` is true, the request ends after the step that runs. Throws Error when the
  /// prompt is empty or does not fit into the context.
  Result run(const Request& request, const std::function<bool(std::string_view)>& on_text,
             const std::atomic<bool>* cancel = nullptr);

 private:
  bool prefill(const Request& request, const std::atomic<bool>* cancel);
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
