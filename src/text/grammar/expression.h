// Regular expressions over characters, as trees: what patterns, formats and number ranges are written in.
// Knows no bytes and no JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text::grammar {

inline constexpr uint32_t kLastCharacter = 0x10FFFF;
inline constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

/// Characters as sorted ranges [first, last] that neither touch nor overlap; without surrogates.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges);
  void add(uint32_t first, uint32_t last);
  void add(const CharacterSet& other);
  CharacterSet complement() const;
  bool contains(uint32_t character) const;
  const std::vector<std::pair<uint32_t, uint32_t>>& ranges() const { return ranges_; }

 private:
  void normalise();
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind { Characters, Sequence, Choice, Repeat, Call };
  static constexpr int kForever = -1;

  Kind kind;
  CharacterSet characters = {};           ///< of Characters
  std::vector<ExpressionPtr> parts = {};  ///< of Sequence and Choice; Repeat has one
  int least = 0, most = kForever;         ///< of Repeat
  int rule = -1;                          ///< of Call
};

ExpressionPtr characters(CharacterSet set);
/// Any character.
ExpressionPtr any_character();
/// The characters of a UTF-8 text one after the other; bytes that are not UTF-8 become U+FFFD.
ExpressionPtr literal(std::string_view text);
ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
/// Nothing at all matches a choice of none.
ExpressionPtr choice(std::vector<ExpressionPtr> parts);
ExpressionPtr repeat(ExpressionPtr part, int least, int most = Expression::kForever);
ExpressionPtr optional(ExpressionPtr part);
ExpressionPtr call(int rule);

/// The characters of a UTF-8 text.
std::vector<uint32_t> code_points(std::string_view text);

}  // namespace sluice::text::grammar
