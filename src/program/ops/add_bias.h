// add_bias: a vector of the file is added to every row.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in + bias; the bias runs over the heads' columns, head after head
struct AddBias {
  static constexpr const char* kName = "add_bias";
  Read in;    // [rows, heads, columns]
  Read bias;  // [1, 1, heads * columns]
  Write out;  // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("bias", bias), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
