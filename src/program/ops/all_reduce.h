// all_reduce: the sum of what places have each computed a part of, for each that goes on with it.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// Every out = the sum of all ins, added in their order. A place has one of either at most: none of the ins
/// where its share of the work is empty, no out where nothing goes on.
struct AllReduce {
  static constexpr const char* kName = "all_reduce";
  static constexpr bool kAcrossPlaces = true;
  std::vector<Read> in;    // each [rows, heads, columns]
  std::vector<Write> out;  // each [rows, heads, columns]

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
