// A limit on work and memory. Grammars come from outside, and small ones can ask for very large automata:
// whoever makes something of a grammar pays before it does, so what is too much is cut off while it is made.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/interruption.h"

namespace sluice::text::grammar {

class TooComplex : public Error {
 public:
  using Error::Error;
};

class Budget {
 public:
  /// About a second and what a request's grammar may take in memory while it is made.
  static constexpr int64_t kSteps = 12'000'000, kBytes = int64_t{256} << 20;

  explicit Budget(int64_t steps = kSteps, int64_t bytes = kBytes) : steps_(steps), bytes_(bytes) {}
  /// Throws TooComplex when the work or the memory is more than was allowed, Interrupted when nobody waits
  /// for it any more.
  void spend(int64_t steps, int64_t bytes = 0) {
    Interruptible::look();
    steps_ -= steps;
    bytes_ -= bytes;
    if (steps_ < 0 || bytes_ < 0)
      throw TooComplex("too complex: its automaton would take more work or memory than a request may");
  }

  /// One of `parts` equal parts of what is left.
  Budget part(int64_t parts) const { return Budget(steps_ / parts, bytes_ / parts); }
  /// Pays what was spent of a part; `memory`: what was made with it stays.
  void settle(const Budget& part, const Budget& left, bool memory) {
    steps_ -= part.steps_ - left.steps_;
    if (memory) bytes_ -= part.bytes_ - left.bytes_;
  }

 private:
  int64_t steps_, bytes_;
};

}  // namespace sluice::text::grammar
