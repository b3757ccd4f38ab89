// embed: rows of the token table.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r] = table[tokens[r]]
struct Embed {
  static constexpr const char* kName = "embed";
  Read table;  // [1, vocabulary, dim]
  Write out;   // [rows, 1, dim]

  template <typename F>
  void operands(F&& f) const {
    f("table", table), f("out", out);
  }
  std::string attributes() const { return ""; }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
