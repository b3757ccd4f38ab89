#include "text/grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text::grammar {
namespace {

class GbnfParser {
 public:
  GbnfParser(std::string_view text, GrammarBuilder& builder) : builder_(builder) {
    if (utf8_valid_prefix(text) != text.size()) fail("not UTF-8");
    builder_.budget().spend(static_cast<int64_t>(text.size()), static_cast<int64_t>(text.size() * 4));
    text_ = code_points(text);
  }

  uint32_t parse() {
    for (skip(true); more(); skip(true)) parse_rule();
    for (const auto& [name, rule] : rules_)
      if (!rule.body) fail("rule {} is used but not defined", name);
    if (!rules_.contains("root")) fail("there is no rule root");
    for (const auto& [name, rule] : rules_) {
      define(rule.id, *rule.body);
    }
    return rules_["root"].id;
  }

 private:
  static constexpr int kMostDepth = 100, kMostRepeats = 1'000'000;
  /// What would take more states unrolled is a rule of its own, whose calls are counted.
  static constexpr uint64_t kManyStates = 1000;
  struct Rule {
    uint32_t id = 0;
    ExpressionPtr body;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    fail("line {}: {}", line, why);
  }
  void define(uint32_t rule, const Expression& body) {
    Nfa nfa(builder_.budget());
    const uint32_t start = nfa.add_state();
    nfa.accepting = nfa.append(body, start);
    builder_.define(rule, std::move(nfa));
  }
  bool more() const { return at_ < text_.size(); }
  uint32_t peek() const { return more() ? text_[at_] : 0; }
  bool take(uint32_t character) {
    if (!more() || text_[at_] != character) return false;
    ++at_;
    return true;
  }
  // White space and comments; line ends only where they mean nothing.
  void skip(bool lines) {
    for (; more(); ++at_) {
      if (peek() == '#') {
        while (more() && peek() != '\n') ++at_;
        if (!more()) return;
      }
      const bool line_end = peek() == '\n' || peek() == '\r';
      if (!(peek() == ' ' || peek() == '\t' || (lines && line_end))) return;
    }
  }
  static bool in_name(uint32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string parse_name() {
    std::string name;
    for (; more() && in_name(peek()); ++at_) name += static_cast<char>(peek());
    if (name.empty()) refuse("expected the name of a rule");
    return name;
  }
  Rule& rule(const std::string& name) {
    const auto [found, is_new] = rules_.try_emplace(name);
    if (is_new) found->second.id = builder_.add_rule("rule " + name);
    return found->second;
  }

  void parse_rule() {
    const std::string name = parse_name();
    skip(false);
    if (!take(':') || !take(':') || !take('=')) refuse("expected ::= behind " + name);
    ExpressionPtr body = parse_choice(0);
    Rule& defined = rule(name);
    if (defined.body) refuse("rule " + name + " is defined twice");
    defined.body = std::move(body);
    if (more() && peek() != '\n' && peek() != '\r') refuse("expected the end of the line");
  }

  ExpressionPtr parse_choice(int depth) {
    if (depth > kMostDepth) refuse("groups are nested too deep");
    std::vector<ExpressionPtr> alternatives;
    do {
      skip(true);
      alternatives.push_back(parse_sequence(depth));
      const size_t before = at_;  // an alternative may stand on the next line
      skip(true);
      if (peek() != '|') at_ = depth == 0 ? before : at_;
    } while (take('|'));
    return choice(std::move(alternatives));
  }

  ExpressionPtr parse_sequence(int depth) {
    std::vector<ExpressionPtr> parts;
    for (skip(depth > 0); more(); skip(depth > 0)) {
      const uint32_t c = peek();
      if (c == '|' || c == ')' || c == '\n' || c == '\r') break;
      parts.push_back(parse_repeated(depth));
    }
    return sequence(std::move(parts));
  }

  ExpressionPtr parse_repeated(int depth) {
    ExpressionPtr part = parse_part(depth);
    for (;; builder_.budget().spend(1)) {
      if (take('*'))
        part = repeat(part, 0);
      else if (take('+'))
        part = repeat(part, 1);
      else if (take('?'))
        part = optional(part);
      else if (take('{'))
        part = parse_counts(part);
      else
        return part;
    }
  }

  ExpressionPtr parse_counts(const ExpressionPtr& part) {
    const auto number = [&]() -> std::optional<int> {
      int value = 0;
      const size_t begin = at_;
      for (; more() && peek() >= '0' && peek() <= '9'; ++at_) {
        value = value * 10 + static_cast<int>(peek() - '0');
        if (value > kMostRepeats) refuse(fmt::format("a repetition above {}", kMostRepeats));
      }
      return begin == at_ ? std::nullopt : std::optional(value);
    };
    const std::optional<int> least = number();
    if (!least) refuse("expected a number behind {");
    int most = *least;
    if (take(',')) most = number().value_or(Expression::kForever);
    if (!take('}')) refuse("expected }");
    if (most != Expression::kForever && most < *least) refuse("the numbers of a repetition are out of order");
    if (part->size * static_cast<uint64_t>(std::max({*least, most, 1})) < kManyStates)
      return repeat(part, *least, most);
    auto repeated = static_cast<uint32_t>(part->rule);
    if (part->kind != Expression::Kind::Call) {
      repeated = builder_.add_rule("what is repeated");
      define(repeated, *part);
    }
    return call(static_cast<int>(
        builder_.repeat_rule("repetition", repeated, static_cast<uint32_t>(*least),
                             most == Expression::kForever ? kNoLimit : static_cast<uint32_t>(most))));
  }

  ExpressionPtr parse_part(int depth) {
    builder_.budget().spend(8, 400);
    const uint32_t c = peek();
    if (take('"')) {
      std::string text;
      while (!take('"')) append_utf8(text, parse_character());
      return literal(text);
    }
    if (take('[')) {
      CharacterSet::Ranges set;
      const bool inverted = take('^');
      while (!take(']')) {
        const uint32_t first = parse_character();
        uint32_t last = first;
        if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
          ++at_;
          last = parse_character();
        }
        if (last < first) refuse("a range in [] that makes no sense");
        builder_.budget().spend(2, 32);
        set.emplace_back(first, last);
      }
      const CharacterSet all(std::move(set));
      return characters(inverted ? all.complement() : all);
    }
    if (take('(')) {
      ExpressionPtr inside = parse_choice(depth + 1);
      skip(true);
      if (!take(')')) refuse("a ( without )");
      return inside;
    }
    if (take('.')) return any_character();
    if (!in_name(c)) refuse("expected a literal, [characters], a group or the name of a rule");
    return call(static_cast<int>(rule(parse_name()).id));
  }

  // One character of a literal or a class.
  uint32_t parse_character() {
    if (!more() || peek() == '\n') refuse("a literal or [] without its end");
    const uint32_t c = text_[at_++];
    if (c != '\\') return c;
    if (!more()) refuse("a backslash at the end");
    const uint32_t escaped = text_[at_++];
    switch (escaped) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'U': return hex(8);
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^': return escaped;
      default: refuse("this escape is not known");
    }
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const uint32_t c = peek(), low = c | 0x20;
      if (c >= '0' && c <= '9')
        value = value << 4 | (c - '0');
      else if (low >= 'a' && low <= 'f')
        value = value << 4 | (low - 'a' + 10);
      else
        refuse("expected hexadecimal digits");
    }
    if (value > kLastCharacter || (value >= kFirstSurrogate && value <= kLastSurrogate))
      refuse("no such character");
    return value;
  }

  GrammarBuilder& builder_;
  std::vector<uint32_t> text_;
  size_t at_ = 0;
  std::map<std::string, Rule> rules_;
};

}  // namespace

uint32_t add_gbnf(std::string_view grammar, GrammarBuilder& builder) {
  return GbnfParser(grammar, builder).parse();
}

}  // namespace sluice::text::grammar
