// norm_matmul: a norm and the products that its result alone goes into, in one pass over the row.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out_x = matmul(rms_norm(in, norm), x) for up to three weights
struct NormMatmul {
  static constexpr const char* kName = "norm_matmul";
  Read in;                    // [rows, 1, inputs]
  Read norm;                  // [1, 1, inputs]
  Read a;                     // [1, outputs, inputs]
  Read b, c;                  // the same with outputs of their own, optional
  Write out_a, out_b, out_c;  // [rows, heads, columns], heads * columns = outputs
  float epsilon = 1e-5f;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("norm", norm), f("a", a), f("b", b), f("c", c);
    f("out_a", out_a), f("out_b", out_b), f("out_c", out_c);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
