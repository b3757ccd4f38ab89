// expert_bias: what experts add to their products, a vector each.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r, k] = in[r, k] + bias[ids[r, k]]
struct ExpertBias {
  static constexpr const char* kName = "expert_bias";
  Read in;    // [rows, used, columns]
  Read bias;  // [1, experts, columns]
  Read ids;   // [rows, 1, used], int32
  Write out;  // [rows, used, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("bias", bias), f("ids", ids), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
