// silu_mul: the gated activation of SwiGLU (Shazeer 2020).
#pragma once

#include <limits>

#include "program/operand.h"

namespace sluice::program {

/// How a gate's value g and an up value u become one: g / (1 + e^(-alpha g)) * (u + shift), where g is at
/// most `limit` and u within it on both sides. As it is built: SwiGLU (Shazeer 2020); gpt-oss has the others.
struct Swiglu {
  float alpha = 1.0f;
  float limit = std::numeric_limits<float>::infinity();
  float shift = 0.0f;

  friend bool operator==(const Swiglu&, const Swiglu&) = default;
  constexpr bool is_plain() const { return *this == Swiglu{}; }
  std::string attributes() const;
};

/// out = gate and up as `form` says
struct SiluMul {
  static constexpr const char* kName = "silu_mul";
  Read gate;  // [rows, heads, columns]
  Read up;    // [rows, heads, columns]
  Write out;  // [rows, heads, columns]
  Swiglu form = {};

  template <typename F>
  void operands(F&& f) const {
    f("gate", gate), f("up", up), f("out", out);
  }
  std::string attributes() const { return form.attributes(); }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
