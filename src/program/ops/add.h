// add: the sum of two activations.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = a + b
struct Add {
  static constexpr const char* kName = "add";
  Read a;     // [rows, heads, columns]
  Read b;     // [rows, heads, columns]
  Write out;  // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("a", a), f("b", b), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
