// copy: an activation goes to another place.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in, each at a place of its own
struct Copy {
  static constexpr const char* kName = "copy";
  static constexpr bool kAcrossPlaces = true;
  Read in;    // [rows, heads, columns]
  Write out;  // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
