// JSON numbers between bounds, as automata. Knows digits; schemas are not its business.
#pragma once

#include <optional>
#include <string_view>

#include "text/grammar/automaton.h"

namespace sluice::text::grammar {

struct NumberRule {
  struct Bound {
    std::string_view decimal;  ///< as JSON writes it
    bool exclusive;
  };
  bool integer = false;  ///< without a fraction or an exponent
  std::optional<Bound> lower, upper;
};

/// The numbers that obey the rule, with at most 19 digits before the point and 20 behind; without bounds also
/// with exponents that keep them within the range of a double. Bounds with more digits than that are taken as
/// the next ones within.
Dfa number_automaton(const NumberRule& rule, Budget& budget);

/// Numbers without exponents that are multiples of `factor`, a positive decimal as JSON writes it. Throws
/// Error when that takes more than kMostFactor remainders.
inline constexpr int kMostFactor = 100'000;
Dfa multiples_automaton(std::string_view factor, Budget& budget);

}  // namespace sluice::text::grammar
