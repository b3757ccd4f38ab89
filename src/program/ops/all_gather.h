// all_gather: columns that places have each made some of, side by side, for each that goes on with them.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// Every out[r] = in[0][r], in[1][r], ... one behind the other. A place has one of either at most.
struct AllGather {
  static constexpr const char* kName = "all_gather";
  static constexpr bool kAcrossPlaces = true;
  std::vector<Read> in;    // each [rows, 1, its columns]
  std::vector<Write> out;  // each [rows, 1, all columns]

  template <typename F>
  void operands(F&& f) const {
    for (const Read& one : in) f("in", one);
    for (const Write& one : out) f("out", one);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
