// sigmoid_mul: a gate between 0 and 1.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in / (1 + e^-gate); a gate of one number a row is for all of the row
struct SigmoidMul {
  static constexpr const char* kName = "sigmoid_mul";
  Read in;    // [rows, heads, columns]
  Read gate;  // [rows, heads, columns] or [rows, 1, 1]
  Write out;  // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("gate", gate), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
