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
/// with exponents that keep them within the range of a double. Throws Error when a bound has too many digits.
Dfa number_automaton(const NumberRule& rule, Budget& budget);

/// Integers that are multiples of `factor`, which is 1 to kMostFactor.
inline constexpr int kMostFactor = 1000;
Dfa multiples_automaton(int factor);

}  // namespace sluice::text::grammar
