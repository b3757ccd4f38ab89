// silu_mul: the gated activation of SwiGLU (Shazeer 2020).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = gate / (1 + exp(-gate)) * up
struct SiluMul {
  static constexpr const char* kName = "silu_mul";
  Read gate;  // [rows, heads, columns]
  Read up;    // [rows, heads, columns]
  Write out;  // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("gate", gate), f("up", up), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
