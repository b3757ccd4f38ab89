#include "text/grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/grammar/unicode_sets.h"

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
  PatternParser(std::string_view pattern, Budget& budget) : budget_(budget) {
    budget_.spend(static_cast<int64_t>(pattern.size()), static_cast<int64_t>(pattern.size() * 4));
    text_ = code_points(pattern);
  }

  ExpressionPtr parse() {
    parse_flags();
    std::vector<ExpressionPtr> alternatives;
    do alternatives.push_back(parse_alternative());
    while (take('|'));
    if (more()) refuse("a ) without (");
    return choice(std::move(alternatives));
  }

 private:
  static constexpr int kMostDepth = 100, kMostRepeats = 100'000, kMostLookaheads = 20;

  [[noreturn]] void refuse(const std::string& why) const {
    fail("{} (at character {})", why, spread_from_.value_or(at_) + 1);
  }
  bool more() const { return at_ < text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(uint32_t character) {
    if (!more() || text_[at_] != character) return false;
    ++at_;
    return true;
  }
  static ExpressionPtr anything() { return repeat(any_character(), 0); }

  // (?i) and the like, at the front.
  void parse_flags() {
    if (peek() != '(' || peek(1) != '?' || !std::isalpha(static_cast<int>(std::min<uint32_t>(peek(2), 127))))
      return;
    size_t end = at_ + 2;
    while (end < text_.size() && text_[end] != ')' && text_[end] != ':') ++end;
    if (end >= text_.size() || text_[end] == ':') return;
    for (size_t i = at_ + 2; i < end; ++i) set_flag(text_[i]);
    at_ = end + 1;
  }
  void set_flag(uint32_t flag) {
    if (flag == 'i')
      any_case_ = true;
    else if (flag == 's')
      dot_is_all_ = true;
    else if (flag != 'u' && flag != 'a')
      refuse("this flag is not supported");
  }

  // A pattern may hold anywhere in a text: what stands before and behind it belongs to it.
  ExpressionPtr parse_alternative() {
    after_start_ = take('^');
    const bool from_start = after_start_;
    ExpressionPtr rest = parse_rest();
    return from_start ? rest : sequence({anything(), std::move(rest)});
  }

  // To the end of an alternative, and of the text. A lookahead is about all of that.
  ExpressionPtr parse_rest() {
    std::vector<ExpressionPtr> parts;
    while (more() && peek() != '|' && peek() != ')') {
      if (peek() == '(' && peek(1) == '?' && (peek(2) == '=' || peek(2) == '!')) {
        const bool negative = peek(2) == '!';
        at_ += 3;
        if (++lookaheads_ > kMostLookaheads) refuse("too many lookaheads");
        after_start_ = after_start_ && parts.empty();
        const bool free = std::exchange(no_places_, !after_start_);
        ExpressionPtr ahead = parse_choice(1);
        if (!take(')')) refuse("a ( without )");
        ahead = sequence({std::move(ahead), anything()});
        ExpressionPtr rest = parse_rest();
        no_places_ = free;
        parts.push_back(negative ? except(std::move(rest), std::move(ahead))
                                 : both(std::move(rest), std::move(ahead)));
        return sequence(std::move(parts));
      }
      if (peek() == '(' && extent(at_ + 1).looks_ahead) {
        after_start_ = after_start_ && parts.empty();
        parts.push_back(parse_spread());
        return sequence(std::move(parts));
      }
      if (peek() == '$' && (at_ + 1 == text_.size() || peek(1) == '|')) {
        ++at_;
        return sequence(std::move(parts));
      }
      parts.push_back(parse_quantified(0));
    }
    parts.push_back(anything());
    return sequence(std::move(parts));
  }

  /// What stands up to the end of a group or of the text.
  struct Extent {
    std::vector<size_t> bars = {};  ///< between its alternatives
    size_t end = 0;
    bool looks_ahead = false;  ///< a lookahead is in it, or in a group of it
  };
  Extent extent(size_t at) const {
    Extent out;
    int depth = 0;
    bool in_class = false;
    for (; at < text_.size(); ++at) {
      const uint32_t character = text_[at];
      const auto next = [&](size_t i) { return at + i < text_.size() ? text_[at + i] : 0; };
      if (character == '\\') {
        ++at;
      } else if (in_class || character == '[') {
        in_class = character != ']';
      } else if (character == '(') {
        ++depth;
        out.looks_ahead = out.looks_ahead || (next(1) == '?' && (next(2) == '=' || next(2) == '!'));
      } else if (character == '|' && depth == 0) {
        out.bars.push_back(at);
      } else if (character == ')' && depth-- == 0) {
        break;
      }
    }
    out.end = std::min(at, text_.size());
    return out;
  }

  // A group with a lookahead, which is about what follows the group, too: the rest of the alternative is read
  // behind each alternative of the group.
  ExpressionPtr parse_spread() {
    if (++spreads_ > kMostLookaheads) refuse("too many groups with lookaheads");
    const bool outermost = !spread_from_;
    if (outermost) spread_from_ = at_;
    ++at_;
    if (take('?') && !take(':')) refuse("a lookahead is not supported within this kind of group");
    Extent group = extent(at_);
    if (group.end == text_.size()) refuse("a ( without )");
    size_t behind = group.end + 1;
    const auto is = [&](uint32_t c) { return behind < text_.size() && text_[behind] == c; };
    if (is('*') || is('+') || is('{')) refuse("a lookahead within a repeated group is not supported");
    const bool may_lack = is('?');
    if (may_lack) behind += text_.size() > behind + 1 && text_[behind + 1] == '?' ? 2 : 1;
    const Extent rest = extent(behind);
    const size_t end = rest.bars.empty() ? rest.end : rest.bars.front();
    budget_.spend(static_cast<int64_t>(text_.size() * (group.bars.size() + 2)));
    const std::vector<uint32_t> all = text_;
    const bool after_start = after_start_;
    std::vector<ExpressionPtr> alternatives;
    const auto read = [&](size_t from, size_t to) {
      const auto at = [&](size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
      text_.assign(at(from), at(to));
      text_.insert(text_.end(), at(behind), at(end));
      at_ = 0;
      after_start_ = after_start;
      alternatives.push_back(parse_rest());
      if (more()) refuse("a ) without (");
    };
    group.bars.push_back(group.end);
    for (size_t from = at_; const size_t bar : group.bars) {
      read(from, bar);
      from = bar + 1;
    }
    if (may_lack) read(0, 0);
    text_ = all;
    at_ = end;
    if (outermost) spread_from_.reset();
    return choice(std::move(alternatives));
  }

  ExpressionPtr parse_choice(int depth) {
    std::vector<ExpressionPtr> alternatives;
    do alternatives.push_back(parse_sequence(depth));
    while (take('|'));
    return choice(std::move(alternatives));
  }

  ExpressionPtr parse_sequence(int depth) {
    std::vector<ExpressionPtr> parts;
    while (more() && peek() != '|' && peek() != ')') parts.push_back(parse_quantified(depth));
    return sequence(std::move(parts));
  }

  ExpressionPtr parse_quantified(int depth) {
    budget_.spend(8, 400);
    ExpressionPtr atom = parse_atom(depth);
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = Expression::kForever;
    } else if (take('+')) {
      most = Expression::kForever;
    } else if (take('?')) {
      least = 0;
    } else if (!parse_counts(least, most)) {
      return atom;
    }
    take('?');  // lazy or not, the same texts match
    if (peek() == '*' || peek() == '+' || peek() == '?') refuse("two quantifiers");
    return repeat(std::move(atom), least, most);
  }

  // {m}, {m,} or {m,n}; a brace before anything else stands for itself.
  bool parse_counts(int& least, int& most) {
    const size_t before = at_;
    if (!take('{')) return false;
    const auto number = [&]() -> std::optional<int> {
      int value = 0;
      const size_t begin = at_;
      for (; more() && peek() >= '0' && peek() <= '9'; ++at_)
        value = std::min(value * 10 + static_cast<int>(peek() - '0'), kMostRepeats + 1);
      return at_ == begin ? std::nullopt : std::optional(value);
    };
    const std::optional<int> first = number();
    std::optional<int> last = first;
    const bool open = first && take(',') && !(last = number());
    if (!first || !take('}')) {
      at_ = before;
      return false;
    }
    least = *first;
    most = open ? Expression::kForever : *last;
    if (std::max(least, most) > kMostRepeats) refuse(fmt::format("a quantifier above {}", kMostRepeats));
    if (!open && most < least) refuse("a quantifier whose numbers are out of order");
    return true;
  }

  ExpressionPtr parse_place(Place place) {
    if (no_places_ && place != Place::End) refuse("^ and \\b beside a lookahead are not supported");
    return at(place);
  }

  ExpressionPtr parse_atom(int depth) {
    const uint32_t character = text_[at_++];
    switch (character) {
      case '.': return dot_is_all_ ? any_character() : characters(kLineEnds.complement());
      case '[': return characters(parse_class());
      case '^': return parse_place(Place::Start);
      case '$': return parse_place(Place::End);
      case '\\':
        if (take('b')) return parse_place(Place::WordEdge);
        if (take('B')) return parse_place(Place::NoWordEdge);
        if (take('A')) return parse_place(Place::Start);
        if (take('z') || take('Z')) return parse_place(Place::End);
        return characters(CharacterSet(parse_escape(false)));
      case '(': return parse_group(depth);
      case '*':
      case '+':
      case '?': --at_; refuse("a quantifier without anything before it");
      default: return characters(CharacterSet(in_case({{character, character}})));
    }
  }

  ExpressionPtr parse_group(int depth) {
    if (depth >= kMostDepth) refuse("groups are nested too deep");
    const bool cased = any_case_, dot = dot_is_all_;
    if (take('?')) {
      if (peek() == 'P' && peek(1) == '<') ++at_;
      if (take('<')) {
        if (peek() == '=' || peek() == '!') refuse("lookbehind is not supported");
        while (more() && peek() != '>') ++at_;  // a name means nothing here
        if (!take('>')) refuse("expected >");
      } else if (peek() == '=' || peek() == '!') {
        refuse("a lookahead within a group is not supported");
      } else {
        for (; more() && peek() != ':'; ++at_) {
          if (!(peek() >= 'a' && peek() <= 'z')) refuse("this kind of group is not supported");
          set_flag(peek());
        }
        if (!take(':')) refuse("this kind of group is not supported");
      }
    }
    ExpressionPtr inside = parse_choice(depth + 1);
    if (!take(')')) refuse("a ( without )");
    any_case_ = cased, dot_is_all_ = dot;
    return inside;
  }

  using Ranges = CharacterSet::Ranges;

  // Letters in both cases, where these do not matter (ASCII's; no others are taken for the same).
  Ranges in_case(Ranges ranges) const {
    if (!any_case_) return ranges;
    const size_t count = ranges.size();
    for (size_t i = 0; i < count; ++i) {
      const auto [first, last] = ranges[i];
      for (const uint32_t a : {uint32_t{'a'}, uint32_t{'A'}}) {
        const uint32_t low = std::max(first, a), high = std::min(last, a + 25);
        if (low <= high) ranges.emplace_back(low ^ 0x20, high ^ 0x20);
      }
    }
    return ranges;
  }

  // Behind "[".
  CharacterSet parse_class() {
    Ranges set;
    const bool inverted = take('^');
    while (!take(']')) {
      if (!more()) refuse("a [ without ]");
      const Ranges first = parse_class_item();
      if (peek() != '-' || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const Ranges last = parse_class_item();
      const auto single = [](const Ranges& one) { return one.size() == 1 && one[0].first == one[0].second; };
      if (!single(first) || !single(last) || first[0].first > last[0].first)
        refuse("a range in [] that makes no sense");
      set.emplace_back(first[0].first, last[0].first);
    }
    const CharacterSet all(in_case(std::move(set)));
    budget_.spend(static_cast<int64_t>(all.ranges().size()) * 2,
                  static_cast<int64_t>(all.ranges().size()) * 16);
    return inverted ? all.complement() : all;
  }

  Ranges parse_class_item() {
    if (!more()) refuse("a [ without ]");
    const uint32_t character = text_[at_++];
    return character == '\\' ? parse_escape(true) : Ranges{{character, character}};
  }

  // Behind a backslash.
  Ranges parse_escape(bool in_class) {
    if (!more()) refuse("a backslash at the end");
    const uint32_t character = text_[at_++];
    const auto one = [&](uint32_t c) { return in_class ? Ranges{{c, c}} : in_case({{c, c}}); };
    switch (character) {
      case 'd': return kDigits.ranges();
      case 'D': return kDigits.complement().ranges();
      case 'w': return kWord.ranges();
      case 'W': return kWord.complement().ranges();
      case 's': return kSpaces.ranges();
      case 'S': return kSpaces.complement().ranges();
      case 'p': return parse_property(false);
      case 'P': return parse_property(true);
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return one(hex(2));
      case 'u': {
        if (!take('{')) return one(parse_unit());
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

  // Behind \p: {Name}, {Name=Value} or one letter.
  Ranges parse_property(bool inverted) {
    std::string name;
    if (take('{')) {
      while (more() && peek() != '}' && name.size() < 60)
        name += static_cast<char>(std::min<uint32_t>(text_[at_++], 0x7F));
      if (!take('}')) refuse("expected }");
    } else if (more()) {
      name = static_cast<char>(std::min<uint32_t>(text_[at_++], 0x7F));
    }
    if (!std::all_of(name.begin(), name.end(),
                     [](char c) { return std::isalnum(c) || c == '_' || c == '='; }))
      refuse("\\p is not followed by the name of a property");
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      const std::string key = name.substr(0, equals);
      if (key == "gc" || key == "General_Category") name.erase(0, equals + 1);
    }
    static const std::map<std::string_view, std::string_view> kLong = {{"Letter", "L"},
                                                                       {"Lowercase_Letter", "Ll"},
                                                                       {"Uppercase_Letter", "Lu"},
                                                                       {"Mark", "M"},
                                                                       {"Number", "N"},
                                                                       {"Decimal_Number", "Nd"},
                                                                       {"Punctuation", "P"},
                                                                       {"Symbol", "S"},
                                                                       {"Separator", "Z"},
                                                                       {"Space_Separator", "Zs"},
                                                                       {"Other", "C"},
                                                                       {"Control", "Cc"}};
    if (const auto found = kLong.find(name); found != kLong.end()) name = found->second;
    budget_.spend(200'000);
    const std::optional<CharacterSet> set = unicode_set(name);
    if (!set) refuse("\\p{" + name + "} is not a known property");
    return inverted ? set->complement().ranges() : set->ranges();
  }

  // Four digits, or two times four that are the halves of one character.
  uint32_t parse_unit() {
    const uint32_t first = hex(4, true);
    if (first < kFirstSurrogate || first > kLastSurrogate) return first;
    if (first < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
      at_ += 2;
      const uint32_t second = hex(4, true);
      if (second >= 0xDC00 && second <= kLastSurrogate)
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    refuse("half a surrogate pair is not supported");
  }

  // That many digits; 0: as many as there are.
  uint32_t hex(int digits, bool surrogates = false) {
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
    if (!surrogates && value >= kFirstSurrogate && value <= kLastSurrogate)
      refuse("surrogates are not supported");
    return value;
  }

  Budget& budget_;
  std::vector<uint32_t> text_;
  size_t at_ = 0;
  bool any_case_ = false, dot_is_all_ = false;
  bool after_start_ = false;  ///< nothing has been read behind the alternative's ^
  bool no_places_ = false;    ///< what is read does not know what stands before it
  int lookaheads_ = 0, spreads_ = 0;
  std::optional<size_t> spread_from_;  ///< where the group begins that is being read in parts
};

}  // namespace

ExpressionPtr pattern_expression(std::string_view pattern, Budget& budget) {
  return PatternParser(pattern, budget).parse();
}

}  // namespace sluice::text::grammar
