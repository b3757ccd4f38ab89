// A limit on work. Grammars come from outside, and small ones can ask for very large automata.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace sluice::text::grammar {

class Budget {
 public:
  explicit Budget(int64_t steps) : left_(steps) {}
  /// Throws Error when the work is more than was allowed.
  void spend(int64_t steps) {
    left_ -= steps;
    if (left_ < 0) fail("too complex: its automaton would take more work or memory than a request may");
  }

 private:
  int64_t left_;
};

}  // namespace sluice::text::grammar
