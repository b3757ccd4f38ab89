// Digits are compared from the left, as one does on paper: a number is below another when it has fewer digits
// before the point, or the first digit in which they differ is smaller.
#include "text/grammar/numbers.h"

#include <algorithm>
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
      e == std::string_view::npos
          ? 0
          : std::clamp(std::strtol(std::string(json.substr(e + 1)).c_str(), nullptr, 10), -1000L, 1000L);
  json = json.substr(0, e);
  const size_t point = json.find('.');
  std::string digits(json.substr(0, point));
  auto whole = static_cast<long>(digits.size());
  if (point != std::string_view::npos) digits += json.substr(point + 1);
  whole += exponent;
  whole = std::clamp(whole, -1000L, 1000L);
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0');
  whole = std::max(whole, 0L);
  if (static_cast<size_t>(whole) > digits.size()) digits.resize(static_cast<size_t>(whole), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole));
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

// Whether a bound is beyond all numbers that are written here.
bool is_beyond_all(const Decimal& decimal) { return decimal.whole.size() > kWholeDigits; }

// A bound with as many digits as numbers have here: the next one towards zero, behind which the same numbers
// lie as behind the bound itself but for the bound's side; `away`: on the bound's far side.
void shorten(Decimal& decimal, NumberRule::Bound& bound, bool away) {
  if (decimal.fraction.size() <= kFractionDigits) return;
  decimal.fraction.resize(kFractionDigits);
  decimal.fraction.resize(decimal.fraction.find_last_not_of('0') + 1);
  bound.exclusive = away;
  if (decimal.is_zero()) decimal.negative = false;
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
ExpressionPtr bounded(NumberRule::Bound bound, bool is_lower) {
  Decimal decimal = read_decimal(bound.decimal);
  const ExpressionPtr all = sequence({optional(text("-")), unsigned_number(false, false)});
  if (is_beyond_all(decimal)) return is_lower == decimal.negative ? all : nothing();
  shorten(decimal, bound, is_lower != decimal.negative);
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
  Dfa dfa = automaton(*sequence({optional(text("-")), unsigned_number(rule.integer, free)}), budget);
  if (rule.lower) dfa = intersection(dfa, automaton(*bounded(*rule.lower, true), budget), budget);
  if (rule.upper) dfa = intersection(dfa, automaton(*bounded(*rule.upper, false), budget), budget);
  return dfa;
}

// The factor is `step` units of the last of its `places` behind the point; so are its multiples, several
// times that. One state for each remainder before the point and behind each further digit.
Dfa multiples_automaton(std::string_view factor, Budget& budget) {
  const Decimal decimal = read_decimal(factor);
  std::string digits = decimal.whole + decimal.fraction;
  digits.erase(0, digits.find_first_not_of('0'));
  const auto places = static_cast<uint32_t>(decimal.fraction.size());
  const uint64_t step = digits.empty() || digits.size() > 6 ? 0 : std::stoull(digits);
  if (decimal.negative || step == 0 || places > kFractionDigits || step * (places + 1) > kMostFactor)
    fail("supported for positive numbers of few digits");
  std::vector<uint64_t> power = {1};  // of ten, as remainders
  for (uint32_t i = 0; i < places; ++i) power.push_back(power.back() * 10 % step);
  // 0: start, 1: behind the sign, then remainders before the point, then `places` rows of them behind it,
  // each with one more digit; the states behind the point itself come last.
  budget.spend(static_cast<int64_t>(step * (places + 2) * 12),
               static_cast<int64_t>(step * (places + 2) * 160));
  Dfa dfa;
  const auto state = [&](uint32_t places_done, uint64_t remainder) {
    return static_cast<uint32_t>(2 + places_done * step + remainder);
  };
  const auto points = static_cast<uint32_t>(2 + (places + 1) * step);
  const auto add_digits = [&](uint32_t places_done, uint64_t remainder) {
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const auto symbol = static_cast<Symbol>('0' + digit);
      dfa.add_edge(symbol, symbol, state(places_done, (remainder * 10 + digit) % step));
    }
  };
  dfa.add_state(false);
  dfa.add_edge('-', '-', 1);
  add_digits(0, 0);
  dfa.add_state(false);
  add_digits(0, 0);
  for (uint32_t done = 0; done <= places; ++done) {
    for (uint64_t remainder = 0; remainder < step; ++remainder) {
      dfa.add_state(remainder * power[places - done] % step == 0);
      if (done == 0 && places > 0) dfa.add_edge('.', '.', static_cast<uint32_t>(points + remainder));
      if (done == 0 || done < places) add_digits(done == 0 ? 0 : done + 1, remainder);
    }
  }
  for (uint64_t remainder = 0; places > 0 && remainder < step; ++remainder) {
    dfa.add_state(false);
    add_digits(1, remainder);
  }
  trim(dfa);
  return dfa;
}

}  // namespace sluice::text::grammar
