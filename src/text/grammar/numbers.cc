// Digits are compared from the left, as one does on paper: a number is below another when it has fewer digits
// before the point, or the first digit in which they differ is smaller.
#include "text/grammar/numbers.h"

#include <cstdlib>
#include <string>

namespace sluice::text::grammar {
namespace {

constexpr int kWholeDigits = 19, kFractionDigits = 20;

ExpressionPtr digits(char first, char last) {
  return first > last ? choice({})
                      : characters({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
}
ExpressionPtr any_digits(int least, int most) { return repeat(digits('0', '9'), least, most); }
ExpressionPtr text(const std::string& bytes) { return literal(bytes); }
ExpressionPtr nothing() { return choice({}); }

/// A decimal without a sign: whole part without leading zeros ("0" at least), fraction without trailing ones.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Decimal read_decimal(std::string_view json) {
  Decimal out;
  if (json.starts_with('-')) {
    out.negative = true;
    json.remove_prefix(1);
  }
  const size_t e = json.find_first_of("eE");
  const long exponent =
      e == std::string_view::npos ? 0 : std::strtol(std::string(json.substr(e + 1)).c_str(), nullptr, 10);
  json = json.substr(0, e);
  const size_t point = json.find('.');
  std::string digits(json.substr(0, point));
  auto whole = static_cast<long>(digits.size());
  if (point != std::string_view::npos) digits += json.substr(point + 1);
  whole += exponent;
  if (whole > 400 || whole < -400) fail("a bound of too many digits");
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0');
  whole = std::max(whole, 0L);
  if (static_cast<size_t>(whole) > digits.size()) digits.resize(static_cast<size_t>(whole), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole));
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.size() > kWholeDigits || out.fraction.size() > kFractionDigits)
    fail("a bound of too many digits");
  if (out.is_zero()) out.negative = false;
  return out;
}

// Whole parts above or below one that is given: as long, or longer (shorter).
ExpressionPtr whole_beyond(const std::string& whole, bool above) {
  std::vector<ExpressionPtr> ways;
  for (size_t i = 0; i < whole.size(); ++i) {
    const char lowest = i == 0 && whole.size() > 1 ? '1' : '0';
    const ExpressionPtr digit = above ? digits(static_cast<char>(whole[i] + 1), '9')
                                      : digits(lowest, static_cast<char>(whole[i] - 1));
    const int rest = static_cast<int>(whole.size() - i - 1);
    ways.push_back(sequence({text(whole.substr(0, i)), digit, any_digits(rest, rest)}));
  }
  const int length = static_cast<int>(whole.size());
  if (above && length < kWholeDigits)
    ways.push_back(sequence({digits('1', '9'), any_digits(length, kWholeDigits - 1)}));
  if (!above && length > 1) {
    ways.push_back(text("0"));
    ways.push_back(sequence({digits('1', '9'), any_digits(0, length - 2)}));
  }
  return choice(std::move(ways));
}

// Fractions, with their point, that are at or beyond one that is given; beyond only if `exclusive`.
ExpressionPtr fraction_beyond(const std::string& fraction, bool above, bool exclusive) {
  std::vector<ExpressionPtr> ways;
  const ExpressionPtr rest = any_digits(0, kFractionDigits);
  for (size_t i = 0; i < fraction.size(); ++i) {
    const ExpressionPtr digit = above ? digits(static_cast<char>(fraction[i] + 1), '9')
                                      : digits('0', static_cast<char>(fraction[i] - 1));
    ways.push_back(sequence({text("." + fraction.substr(0, i)), digit, rest}));
    if (!above) ways.push_back(i == 0 ? sequence({}) : text("." + fraction.substr(0, i)));
  }
  const ExpressionPtr zeros = repeat(digits('0', '0'), 0, kFractionDigits);
  if (fraction.empty()) {
    const ExpressionPtr more = sequence({text("."), zeros, digits('1', '9'), rest});
    if (above) ways.push_back(more);
    if (!exclusive) ways.push_back(optional(sequence({text("."), digits('0', '0'), zeros})));
  } else {
    const ExpressionPtr same = text("." + fraction);
    if (above) ways.push_back(sequence({same, zeros, digits('1', '9'), rest}));
    if (!exclusive) ways.push_back(sequence({same, zeros}));
  }
  return choice(std::move(ways));
}

// Numbers without a sign at or beyond a bound.
ExpressionPtr beyond(const Decimal& bound, bool above, bool exclusive) {
  const ExpressionPtr any_fraction = optional(sequence({text("."), any_digits(1, kFractionDigits)}));
  return choice({sequence({whole_beyond(bound.whole, above), any_fraction}),
                 sequence({text(bound.whole), fraction_beyond(bound.fraction, above, exclusive)})});
}

ExpressionPtr whole_part() {
  return choice({text("0"), sequence({digits('1', '9'), any_digits(0, kWholeDigits - 1)})});
}

ExpressionPtr unsigned_number(bool integer, bool exponents) {
  if (integer) return whole_part();
  const ExpressionPtr e = characters({{'E', 'E'}, {'e', 'e'}});
  std::vector<ExpressionPtr> parts = {whole_part(),
                                      optional(sequence({text("."), any_digits(1, kFractionDigits)}))};
  if (exponents)
    parts.push_back(optional(sequence({e, choice({sequence({optional(text("+")), any_digits(1, 2)}),
                                                  sequence({text("-"), any_digits(1, 3)})})})));
  return sequence(std::move(parts));
}

// What a bound leaves of the numbers with and without a minus.
ExpressionPtr bounded(const NumberRule::Bound& bound, bool is_lower) {
  const Decimal decimal = read_decimal(bound.decimal);
  const ExpressionPtr minus = text("-"), any = unsigned_number(false, false);
  // Against a bound of the other sign all or nothing remains; zero counts as positive, and so does -0.
  const ExpressionPtr same_sign = beyond(decimal, is_lower != decimal.negative, bound.exclusive);
  if (decimal.is_zero()) {
    const ExpressionPtr zero = fraction_beyond("", false, false);
    const ExpressionPtr minus_zero = bound.exclusive ? nothing() : sequence({minus, text("0"), zero});
    if (is_lower) return choice({same_sign, minus_zero});
    const ExpressionPtr below = beyond({.whole = "0"}, true, bound.exclusive);
    return choice({bound.exclusive ? nothing() : sequence({text("0"), zero}), sequence({minus, below})});
  }
  if (is_lower) return decimal.negative ? choice({any, sequence({minus, same_sign})}) : same_sign;
  return decimal.negative ? sequence({minus, same_sign}) : choice({same_sign, sequence({minus, any})});
}

}  // namespace

Dfa number_automaton(const NumberRule& rule, Budget& budget) {
  const bool free = !rule.lower && !rule.upper;
  Dfa dfa = automaton(*sequence({optional(text("-")), unsigned_number(rule.integer, free)}), Writing::Plain,
                      budget);
  if (rule.lower)
    dfa = intersection(dfa, automaton(*bounded(*rule.lower, true), Writing::Plain, budget), budget);
  if (rule.upper)
    dfa = intersection(dfa, automaton(*bounded(*rule.upper, false), Writing::Plain, budget), budget);
  return dfa;
}

Dfa multiples_automaton(int factor) {
  Dfa dfa;  // 0: start, 1: behind the sign, then one state a remainder
  dfa.states.resize(static_cast<size_t>(factor) + 2);
  dfa.states[0].edges.push_back({'-', '-', 1, 0});
  for (int from = 0; from < factor + 2; ++from) {
    const int remainder = std::max(0, from - 2);
    for (int digit = 0; digit < 10; ++digit) {
      const auto symbol = static_cast<Symbol>('0' + digit);
      const auto target = static_cast<uint32_t>((remainder * 10 + digit) % factor + 2);
      dfa.states[static_cast<size_t>(from)].edges.push_back({symbol, symbol, target, 0});
    }
  }
  dfa.states[2].accepting = true;
  return dfa;
}

}  // namespace sluice::text::grammar
