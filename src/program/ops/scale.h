// scale: products are multiplied by the number that their whole matrix has beside its blocks' scales (NVFP4).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in * scale[0], or where experts made the row, each its part: in * scale[its expert]. Routing weights
/// are such rows, too, of a column an expert.
struct Scale {
  static constexpr const char* kName = "scale";
  Read in;     // [rows, heads, columns]
  Read scale;  // [1, 1, matrices]
  Read ids;    // [rows, 1, used], int32, optional: used divides heads * columns
  Write out;   // [rows, heads, columns]

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("scale", scale), f("ids", ids), f("out", out);
  }
  /// Numbers of a row that one expert made.
  int64_t each(const Program& p) const;
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
