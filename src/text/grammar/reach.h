// How far the end of a rule is from each of its states, in counts: so that a rule whose counts are limited is
// followed only where it still can be completed.
#pragma once

#include <cstdint>
#include <vector>

#include "text/grammar/automaton.h"

namespace sluice::text::grammar {

inline constexpr uint32_t kNoLimit = UINT32_MAX;
/// A count as a limit: what is too large for one is none.
inline uint32_t limit(uint64_t count) { return count >= kNoLimit ? kNoLimit : static_cast<uint32_t>(count); }

/// The counts with which a rule can be completed from a state: `shortest`, and each from `tail` to `longest`
/// (kNoLimit: without end; `tail` kNoLimit: not known). There may be more; these lead from state to state, so
/// that whoever keeps to them always gets to an end.
struct Reach {
  uint32_t shortest = kNoLimit, tail = kNoLimit, longest = 0;

  /// Whether a way with `count` so far can end with at least `least` and at most `most`.
  bool leads(uint32_t count, uint32_t least, uint32_t most) const {
    const auto fits = [&](uint32_t more) { return more != kNoLimit && more <= most && count <= most - more; };
    if (count >= least && fits(shortest)) return true;
    return fits(tail) && (longest >= least || count >= least - longest);
  }
};

/// By state. Calls count as ways, and as said by their edges; states from which nothing accepts get no ways.
std::vector<Reach> find_reach(const Dfa& dfa, Budget& budget);

}  // namespace sluice::text::grammar
