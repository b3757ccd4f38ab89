// gated_norm: what a linear attention gives is normed, each head by itself, and let through by a gate.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// What a gate is passed through: silu, x / (1 + e^-x), or sigmoid, 1 / (1 + e^-x).
enum class GateForm : uint8_t { Silu, Sigmoid };

/// out = rms_norm(in, weight) * form(gate)
struct GatedNorm {
  static constexpr const char* kName = "gated_norm";
  Read in;      // [rows, heads, columns]
  Read weight;  // [1, 1, columns]
  Read gate;    // [rows, heads, columns]
  Write out;    // [rows, heads, columns]
  float epsilon = 1e-5f;
  GateForm form = GateForm::Silu;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("gate", gate), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
