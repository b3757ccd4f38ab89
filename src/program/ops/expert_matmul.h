// expert_matmul: each row times the matrices of its selected experts.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r, k, n] = sum over c of in[r, k or 0, c] * weight[ids[r, k], n, c]
struct ExpertMatmul {
  static constexpr const char* kName = "expert_matmul";
  Read in;      // [rows, used, inputs], or [rows, 1, inputs]: the same for every selected expert
  Read weight;  // [experts, outputs, inputs]
  Read ids;     // [rows, 1, used], int32
  Write out;    // [rows, used, outputs]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("ids", ids), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
