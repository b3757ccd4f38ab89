// One request at a time from prompt to text, on the caller's thread: a batcher (batcher.h) with one place.
// The rows of earlier requests stay in the cache for later ones that begin alike.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "engine/batcher.h"
#include "engine/request.h"
#include "program/backend.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Generator {
 public:
  /// The executable must have been compiled for at least `max_rows` rows, 1 + draft_tokens output rows and
  /// the pages of `context` tokens. shallow_rows, draft_tokens, predictor, look_up, timeless: EngineOptions.
  Generator(program::Executable& executable, const text::Tokenizer& tokenizer, int64_t context,
            int64_t max_rows, int64_t shallow_rows = 0, int64_t draft_tokens = 0,
            program::Executable* predictor = nullptr, bool look_up = true, bool timeless = false);

  int64_t context() const { return context_; }
  /// Runs a request and calls on_text with each token's piece of text (empty while it is held back) and then
  /// with what is left; false from it cancels. Tokens that the prompt and an earlier request begin with are
  /// not computed again. on_prompt hears how many of the prompt's tokens have been
  /// read, after each step that reads some. Once `cancel` is true, the request ends and the step that runs is
  /// given up. Throws Error when the prompt is empty or does not fit into the context, and where nothing can
  /// be drawn.
  Result run(const Request& request, const std::function<bool(std::string_view)>& on_text,
             const std::atomic<bool>* cancel = nullptr,
             const std::function<void(int64_t done, int64_t total)>& on_prompt = {});

 private:
  int64_t context_;
  Batcher batcher_;
  RequestId last_id_ = 0;
};

}  // namespace sluice::engine
