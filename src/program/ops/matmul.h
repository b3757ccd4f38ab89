// matmul: activations times a weight matrix that lies as [outputs, inputs].
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r, n] = sum over c of in[r, c] * weight[n, c]; heads of in and out count as more columns
struct Matmul {
  static constexpr const char* kName = "matmul";
  Read in;      // [rows, heads, columns], contiguous
  Read weight;  // [1, outputs, inputs]
  Write out;    // [rows, heads, columns], contiguous

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
