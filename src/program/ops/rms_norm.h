// rms_norm: root mean square normalisation (Zhang and Sennrich 2019).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in / sqrt(mean(in^2) + epsilon) * weight, each head of each row by itself
struct RmsNorm {
  static constexpr const char* kName = "rms_norm";
  Read in;      // [rows, heads, columns]
  Read weight;  // [1, 1, columns]
  Write out;    // [rows, heads, columns]
  float epsilon = 1e-5f;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
