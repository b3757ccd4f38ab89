// The logits of whole sequences, row by row: for comparing implementations and measuring how well a model
// predicts a text. Knows tokens and steps; what the logits are good for is the caller's business.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/batch.h"
#include "program/backend.h"

namespace sluice::engine {

class Scorer {
 public:
  /// The executable must have been compiled for at least `max_rows` rows and output rows, and the pages of
  /// `context` tokens.
  Scorer(program::Executable& executable, int64_t context, int64_t max_rows);

  /// Runs the tokens (at most the context's) as one sequence from position 0 on, and calls on_row(position,
  /// logits [vocabulary]) for the positions from `first` on.
  void run(std::span<const int32_t> tokens, int64_t first,
           const std::function<void(int64_t, std::span<const float>)>& on_row);

 private:
  program::Executable& executable_;
  int64_t max_rows_;
  Batch batch_;
};

}  // namespace sluice::engine
