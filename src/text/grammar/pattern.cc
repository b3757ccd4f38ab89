#include "text/grammar/pattern.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>

#include "base/error.h"

namespace sluice::text::grammar {
namespace {

const CharacterSet kDigits = {{'0', '9'}};
const CharacterSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                              {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                              {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// Recursive descent, with a limit on depth.
class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : text_(code_points(pattern)) {}

  ExpressionPtr parse() {
    std::vector<ExpressionPtr> alternatives;
    do {
      const bool from_start = take('^');
      ExpressionPtr body = parse_sequence(0);
      const bool to_end = take('$');
      const ExpressionPtr anything = repeat(any_character(), 0);
      alternatives.push_back(
          sequence({from_start ? sequence({}) : anything, body, to_end ? sequence({}) : anything}));
    } while (take('|'));
    if (at_ < text_.size()) {
      if (text_[at_] == ')') refuse("a ) without (");
      refuse("^ and $ are supported at the ends of a pattern only");
    }
    return choice(std::move(alternatives));
  }

 private:
  static constexpr int kMostDepth = 100, kMostRepeats = 1000;

  [[noreturn]] void refuse(const std::string& why) const { fail("{} (at character {})", why, at_ + 1); }
  bool more() const { return at_ < text_.size(); }
  uint32_t peek() const { return more() ? text_[at_] : 0; }
  bool take(uint32_t character) {
    if (!more() || text_[at_] != character) return false;
    ++at_;
    return true;
  }

  ExpressionPtr parse_choice(int depth) {
    std::vector<ExpressionPtr> alternatives;
    do alternatives.push_back(parse_sequence(depth));
    while (take('|'));
    return alternatives.size() == 1 ? alternatives.front() : choice(std::move(alternatives));
  }

  ExpressionPtr parse_sequence(int depth) {
    std::vector<ExpressionPtr> parts;
    while (more() && peek() != '|' && peek() != ')' && peek() != '$') {
      if (peek() == '^') refuse("^ and $ are supported at the ends of a pattern only");
      parts.push_back(parse_quantified(depth));
    }
    return sequence(std::move(parts));
  }

  ExpressionPtr parse_quantified(int depth) {
    ExpressionPtr atom = parse_atom(depth);
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = Expression::kForever;
    } else if (take('+')) {
      most = Expression::kForever;
    } else if (take('?')) {
      least = 0;
    } else if (peek() == '{') {
      if (!parse_counts(least, most)) return atom;
    } else {
      return atom;
    }
    take('?');  // lazy or not, the same texts match
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') refuse("two quantifiers");
    return repeat(std::move(atom), least, most);
  }

  bool parse_counts(int& least, int& most) {
    ++at_;
    const auto number = [&]() -> std::optional<int> {
      int value = 0;
      const size_t begin = at_;
      for (; more() && peek() >= '0' && peek() <= '9'; ++at_) {
        value = value * 10 + static_cast<int>(peek() - '0');
        if (value > kMostRepeats) refuse(fmt::format("a quantifier above {}", kMostRepeats));
      }
      return at_ == begin ? std::nullopt : std::optional(value);
    };
    const std::optional<int> first = number();
    if (!first) refuse("expected a number behind {");
    least = most = *first;
    if (take(',')) most = number().value_or(Expression::kForever);
    if (!take('}')) refuse("expected }");
    if (most != Expression::kForever && most < least) refuse("a quantifier whose numbers are out of order");
    return true;
  }

  ExpressionPtr parse_atom(int depth) {
    const uint32_t character = text_[at_++];
    switch (character) {
      case '.': return characters(kLineEnds.complement());
      case '[': return characters(parse_class());
      case '\\': return characters(parse_escape(false));
      case '(': return parse_group(depth);
      case '*':
      case '+':
      case '?': --at_; refuse("a quantifier without anything before it");
      case '{':
      case '}':
      case ']': --at_; refuse(fmt::format("{} must be escaped", static_cast<char>(character)));
      default: return characters({{character, character}});
    }
  }

  ExpressionPtr parse_group(int depth) {
    if (depth >= kMostDepth) refuse("groups are nested too deep");
    if (take('?')) {
      if (take('<')) {
        if (peek() == '=' || peek() == '!') refuse("lookbehind is not supported");
        while (more() && peek() != '>') ++at_;  // a name means nothing here
        if (!take('>')) refuse("expected >");
      } else if (!take(':')) {
        refuse(peek() == '=' || peek() == '!' ? "lookahead is not supported"
                                              : "this kind of group is not supported");
      }
    }
    ExpressionPtr inside = parse_choice(depth + 1);
    if (peek() == '$') refuse("^ and $ are supported at the ends of a pattern only");
    if (!take(')')) refuse("a ( without )");
    return inside;
  }

  // Behind "[".
  CharacterSet parse_class() {
    CharacterSet set;
    const bool inverted = take('^');
    while (!take(']')) {
      if (!more()) refuse("a [ without ]");
      const CharacterSet first = parse_class_item();
      if (peek() != '-' || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
        set.add(first);
        continue;
      }
      ++at_;
      const CharacterSet last = parse_class_item();
      const auto single = [](const CharacterSet& one) {
        return one.ranges().size() == 1 && one.ranges()[0].first == one.ranges()[0].second;
      };
      if (!single(first) || !single(last) || first.ranges()[0].first > last.ranges()[0].first)
        refuse("a range in [] that makes no sense");
      set.add(first.ranges()[0].first, last.ranges()[0].first);
    }
    return inverted ? set.complement() : set;
  }

  CharacterSet parse_class_item() {
    if (!more()) refuse("a [ without ]");
    const uint32_t character = text_[at_++];
    return character == '\\' ? parse_escape(true) : CharacterSet{{character, character}};
  }

  // Behind a backslash.
  CharacterSet parse_escape(bool in_class) {
    if (!more()) refuse("a backslash at the end");
    const uint32_t character = text_[at_++];
    const auto one = [](uint32_t c) { return CharacterSet{{c, c}}; };
    switch (character) {
      case 'd': return kDigits;
      case 'D': return kDigits.complement();
      case 'w': return kWord;
      case 'W': return kWord.complement();
      case 's': return kSpaces;
      case 'S': return kSpaces.complement();
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return one(hex(2));
      case 'u': {
        if (!take('{')) return one(hex(4));
        const uint32_t value = hex(0);
        if (!take('}')) refuse("expected }");
        return one(value);
      }
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      default: break;
    }
    const bool letter = (character | 0x20) >= 'a' && (character | 0x20) <= 'z';
    if (letter || (character >= '0' && character <= '9'))
      refuse(fmt::format("\\{} is not supported", static_cast<char>(character)));
    return one(character);
  }

  // That many digits; 0: as many as there are.
  uint32_t hex(int digits) {
    uint32_t value = 0;
    int read = 0;
    for (; more() && (digits == 0 || read < digits); ++read, ++at_) {
      const uint32_t c = peek();
      const uint32_t low = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value << 4 | (c - '0');
      else if (low >= 'a' && low <= 'f')
        value = value << 4 | (low - 'a' + 10);
      else
        break;
      if (value > kLastCharacter) refuse("no such character");
    }
    if (read == 0 || read < digits) refuse("expected hexadecimal digits");
    if (value >= kFirstSurrogate && value <= kLastSurrogate) refuse("surrogates are not supported");
    return value;
  }

  std::vector<uint32_t> text_;
  size_t at_ = 0;
};

// Days that exist, leap years included.
constexpr std::string_view kDate =
    R"((?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|)"
    R"(02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|)"
    R"((?:0[48]|[2468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime =
    R"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";
constexpr std::string_view kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
constexpr std::string_view kName = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";

std::string ipv6_pattern() {
  const std::string part = "[0-9A-Fa-f]{1,4}";
  std::string out = fmt::format("(?:{}:){{7}}{}", part, part);
  for (int before = 0; before <= 7; ++before) {  // "::" stands for at least one part of zeros
    const int after = 7 - before;
    out += before == 0 ? "|:" : fmt::format("|(?:{}:){{1,{}}}", part, before);
    out += after == 0 ? ":" : fmt::format("(?::{}){{1,{}}}", part, after);
  }
  return out + "|::";
}

std::string format_pattern(std::string_view format) {
  const std::map<std::string_view, std::string> known = {
      {"date", std::string(kDate)},
      {"time", std::string(kTime)},
      {"date-time", fmt::format("{}T{}", kDate, kTime)},
      {"duration",
       R"(P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D))"
       R"((?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|)"
       R"(T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)))"},
      {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
      {"ipv4", fmt::format(R"((?:{}\.){{3}}{})", kByte, kByte)},
      {"ipv6", ipv6_pattern()},
      {"hostname", fmt::format(R"({}(?:\.{})*)", kName, kName)},
      {"email",
       fmt::format(R"([A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+)*@{}(?:\.{})*)",
                   kName, kName)},
      {"uri", R"([A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})+)"},
  };
  const auto found = known.find(format);
  return found == known.end() ? std::string() : found->second;
}

}  // namespace

ExpressionPtr pattern_expression(std::string_view pattern) { return PatternParser(pattern).parse(); }

ExpressionPtr format_expression(std::string_view format) {
  const std::string pattern = format_pattern(format);
  return pattern.empty() ? nullptr : pattern_expression("^(?:" + pattern + ")$");
}

}  // namespace sluice::text::grammar
