// gather_rows: only the rows whose logits were asked for go through the output matrix.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[i] = in[output_rows[i]]
struct GatherRows {
  static constexpr const char* kName = "gather_rows";
  Read in;    // [rows, 1, columns]
  Write out;  // [output rows, 1, columns]

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
