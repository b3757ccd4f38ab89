// moe_down_add: the experts' way back: down projections, router weights, shared experts and the residual at
// once. Without a residual it is what places of an all_reduce (ops/all_reduce.h) have each a part of.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r] = residual[r] + shared_down shared_in[r] + sum over k of weights[r, k] * (down[ids[r, k]] in[r,
/// k]), where down's products are scaled, and have their biases added
struct MoeDownAdd {
  static constexpr const char* kName = "moe_down_add";
  Read in;           // [rows, used, inputs]
  Read ids;          // [rows, 1, used], int32
  Read weights;      // [rows, 1, used]
  Read down;         // [experts, outputs, inputs]
  Read down_bias;    // [1, experts, outputs], optional
  Read down_scale;   // [1, 1, experts], optional
  Read shared_in;    // [rows, 1, shared inputs], optional with the one below
  Read shared_down;  // [1, outputs, shared inputs]
  Read residual;     // [rows, 1, outputs], optional
  Write out;         // [rows, 1, outputs]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("ids", ids), f("weights", weights), f("down", down), f("down_bias", down_bias),
        f("down_scale", down_scale);
    f("shared_in", shared_in), f("shared_down", shared_down), f("residual", residual), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
