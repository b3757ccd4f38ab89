// gate_up: the first half of a dense feed-forward network, in one pass over the row.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = silu(matmul(in, gate)) * matmul(in, up)
struct GateUp {
  static constexpr const char* kName = "gate_up";
  Read in;    // [rows, 1, inputs]
  Read gate;  // [1, outputs, inputs]
  Read up;    // [1, outputs, inputs]
  Write out;  // [rows, 1, outputs]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("gate", gate), f("up", up), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
