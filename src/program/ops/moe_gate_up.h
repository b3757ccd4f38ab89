// moe_gate_up: gate, SiLU and up for the shared experts and the selected ones; ids are read inside, nothing
// is gathered.
#pragma once

#include "program/operand.h"
#include "program/ops/silu_mul.h"

namespace sluice::program {

/// out[r, k] = silu(gate[ids[r, k]] in[r]) * (up[ids[r, k]] in[r]), where gate's and up's products are
/// scaled, have their biases added, and `form` may say another activation; shared_out[r] the same with the
/// shared matrices, plain
struct MoeGateUp {
  static constexpr const char* kName = "moe_gate_up";
  Read in;           // [rows, 1, inputs]
  Read ids;          // [rows, 1, used], int32
  Read gate;         // [experts, outputs, inputs]
  Read up;           // [experts, outputs, inputs]
  Read gate_bias;    // [1, experts, outputs], optional with the one below
  Read up_bias;      // [1, experts, outputs]
  Read gate_scale;   // [1, 1, experts], optional
  Read up_scale;     // [1, 1, experts], optional
  Read shared_gate;  // [1, shared outputs, inputs], optional with the two below
  Read shared_up;    // [1, shared outputs, inputs]
  Write out;         // [rows, used, outputs]
  Write shared_out;  // [rows, 1, shared outputs]
  Swiglu form = {};

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("ids", ids), f("gate", gate), f("up", up), f("gate_bias", gate_bias);
    f("up_bias", up_bias), f("gate_scale", gate_scale), f("up_scale", up_scale),
        f("shared_gate", shared_gate), f("shared_up", shared_up), f("out", out);
    f("shared_out", shared_out);
  }
  /// Whether it is SwiGLU of products alone.
  bool is_plain() const { return !gate_bias && !gate_scale && !up_scale && form.is_plain(); }
  std::string attributes() const { return form.attributes(); }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
