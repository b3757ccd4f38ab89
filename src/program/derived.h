// What follows from an output row's logits: its likeliest tokens, a token drawn from them, how many drafted
// tokens are right. For executables that give logits alone, and as the meaning of what others give.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"
#include "program/step.h"

namespace sluice::program {

/// A row's likeliest tokens, as RowResult::top has them.
void find_top(std::span<const float> logits, std::span<Likely> top);

/// The token that Draw says, of a row's likeliest ones; 0 where there is none.
int32_t drawn_from(std::span<const Likely> top, const Draw& draw);

/// The activation whose rows are outputs' hidden states: what the output matrix multiplies; kNoTensor where
/// the list has no such product of its own.
TensorId hidden_states(const Program& program);

class Derived {
 public:
  /// A step's results with all that was wanted and follows from what it gave. Views live until the next call,
  /// and as long as those of `given`.
  StepResult complete(const Step& step, const StepResult& given);

 private:
  std::vector<RowResult> outputs_;
  std::vector<Likely> top_;
};

}  // namespace sluice::program
