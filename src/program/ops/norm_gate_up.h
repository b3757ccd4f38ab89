// norm_gate_up: the first half of a dense feed-forward network, from the row on.
#pragma once

#include "program/operand.h"
#include "program/ops/gate_up.h"

namespace sluice::program {

/// gate_up of rms_norm(in, norm)
struct NormGateUp {
  static constexpr const char* kName = "norm_gate_up";
  Read in;         // [rows, 1, inputs]
  Read norm;       // [1, 1, inputs]
  GateUp gate_up;  ///< all but in
  float epsilon = 1e-5f;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("norm", norm), f("gate", gate_up.gate), f("up", gate_up.up), f("out", gate_up.out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
