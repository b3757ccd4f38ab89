// norm_matmul: a norm and the products that its result alone goes into, in one pass over the row.
#pragma once

#include <array>

#include "program/operand.h"

namespace sluice::program {

/// out_x = matmul(rms_norm(in, norm), x) for up to four weights
struct NormMatmul {
  static constexpr const char* kName = "norm_matmul";
  Read in;                           // [rows, 1, inputs]
  Read norm;                         // [1, 1, inputs]
  Read a;                            // [1, outputs, inputs]
  Read b, c, d;                      // the same with outputs of their own, optional
  Write out_a, out_b, out_c, out_d;  // [rows, heads, columns], heads * columns = outputs
  float epsilon = 1e-5f;

  struct Product {
    Read weight;
    Write out;
  };
  static constexpr int kMostProducts = 4;
  /// All, in order; those that are not there have no weight.
  std::array<Product, kMostProducts> products() const {
    return {{{a, out_a}, {b, out_b}, {c, out_c}, {d, out_d}}};
  }

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("norm", norm), f("a", a), f("b", b), f("c", c), f("d", d);
    f("out_a", out_a), f("out_b", out_b), f("out_c", out_c), f("out_d", out_d);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
