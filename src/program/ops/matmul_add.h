// matmul_add: a projection back into the residual stream; without a residual, a part of what places add up.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = residual + matmul(in, weight) + bias
struct MatmulAdd {
  static constexpr const char* kName = "matmul_add";
  Read in;        // [rows, heads, columns], contiguous
  Read weight;    // [1, outputs, inputs]
  Read residual;  // [rows, 1, outputs], optional
  Read bias;      // [1, 1, outputs], optional
  Write out;      // [rows, 1, outputs]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("residual", residual), f("bias", bias), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
