// Regular expressions over characters, as trees: what patterns, formats, number ranges and grammars are
// written in. Knows no bytes and no JSON. Trees are of limited depth, so whoever walks one may use the stack.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text::grammar {

inline constexpr uint32_t kLastCharacter = 0x10FFFF;
inline constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

/// Characters as sorted ranges [first, last] that neither touch nor overlap; without surrogates.
class CharacterSet {
 public:
  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

  CharacterSet() = default;
  CharacterSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges) : CharacterSet(Ranges(ranges)) {}
  /// In any order.
  explicit CharacterSet(Ranges ranges);
  CharacterSet complement() const;
  const Ranges& ranges() const { return ranges_; }

 private:
  Ranges ranges_;
};

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

/// Where a text is, for what matches no character but a place.
enum class Place : uint8_t { Anywhere, Start, End, WordEdge, NoWordEdge };

struct Expression {
  enum class Kind : uint8_t {
    Characters,  ///< one of `characters`
    Text,        ///< `text`
    Sequence,
    Choice,
    Repeat,  ///< of its one part
    Call,    ///< of `rule`
    At,      ///< nothing, at a `place`
    Both,    ///< what its two parts match, both
    Except,  ///< what its first part matches and its second one does not
  };
  static constexpr int kForever = -1;
  static constexpr uint32_t kMostDepth = 400;

  Kind kind;
  CharacterSet characters = {};
  std::string text = {};  ///< UTF-8
  std::vector<ExpressionPtr> parts = {};
  int least = 0, most = kForever;  ///< of Repeat
  int rule = -1;
  Place place = Place::Anywhere;
  uint32_t depth = 0;  ///< of the tree below
  uint64_t size = 1;   ///< about how many states its automaton has, made without counters
};

ExpressionPtr characters(CharacterSet set);
/// Any character.
ExpressionPtr any_character();
/// A UTF-8 text; bytes that are not UTF-8 become U+FFFD.
ExpressionPtr literal(std::string_view text);
ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
/// Nothing at all matches a choice of none.
ExpressionPtr choice(std::vector<ExpressionPtr> parts);
ExpressionPtr repeat(ExpressionPtr part, int least, int most = Expression::kForever);
ExpressionPtr optional(ExpressionPtr part);
ExpressionPtr call(int rule);
ExpressionPtr at(Place place);
ExpressionPtr both(ExpressionPtr left, ExpressionPtr right);
ExpressionPtr except(ExpressionPtr left, ExpressionPtr right);

/// An expression and how many characters its text has: together they say what another expression says alone.
struct Lengths {
  ExpressionPtr content;
  uint64_t least, most;
};
/// Takes the numbers out of an expression whose parts are of one length each but for one, which repeats a
/// character, as in A[a-z]{2,2000}: lengths are better counted than unrolled. None: it is not like that.
std::optional<Lengths> with_lengths(const ExpressionPtr& expression);

/// The characters of a UTF-8 text.
std::vector<uint32_t> code_points(std::string_view text);
/// How many there are.
uint64_t count_code_points(std::string_view text);
/// Adds a character in UTF-8.
void append_utf8(std::string& text, uint32_t character);

}  // namespace sluice::text::grammar
