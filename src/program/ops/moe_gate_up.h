// moe_gate_up: gate, SiLU and up for the shared experts and the selected ones; ids are read inside, nothing
// is gathered.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r, k] = silu(gate[ids[r, k]] in[r]) * (up[ids[r, k]] in[r]); shared_out[r] the same with the shared
/// matrices
struct MoeGateUp {
  static constexpr const char* kName = "moe_gate_up";
  Read in;           // [rows, 1, inputs]
  Read ids;          // [rows, 1, used], int32
  Read gate;         // [experts, outputs, inputs]
  Read up;           // [experts, outputs, inputs]
  Read shared_gate;  // [1, shared outputs, inputs], optional with the two below
  Read shared_up;    // [1, shared outputs, inputs]
  Write out;         // [rows, used, outputs]
  Write shared_out;  // [rows, 1, shared outputs]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("ids", ids), f("gate", gate), f("up", up), f("shared_gate", shared_gate);
    f("shared_up", shared_up), f("out", out), f("shared_out", shared_out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
