// expert_combine: the weighted sum of a row's experts.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r] = sum over k of weights[r, k] * in[r, k]
struct ExpertCombine {
  static constexpr const char* kName = "expert_combine";
  Read in;       // [rows, used, columns]
  Read weights;  // [rows, 1, used]
  Write out;     // [rows, 1, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weights", weights), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
