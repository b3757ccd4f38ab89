#include "text/grammar/expression.h"

#include <algorithm>

#include "text/utf8.h"

namespace sluice::text::grammar {

CharacterSet::CharacterSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges) : ranges_(ranges) {
  normalise();
}

void CharacterSet::add(uint32_t first, uint32_t last) {
  ranges_.emplace_back(first, last);
  normalise();
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalise();
}

// Sorts, joins what touches, and takes the surrogates out: they are no characters.
void CharacterSet::normalise() {
  std::vector<std::pair<uint32_t, uint32_t>> cut;
  for (const auto& [first, last] : ranges_) {
    if (first < kFirstSurrogate) cut.emplace_back(first, std::min(last, kFirstSurrogate - 1));
    if (last > kLastSurrogate) cut.emplace_back(std::max(first, kLastSurrogate + 1), last);
  }
  std::sort(cut.begin(), cut.end());
  ranges_.clear();
  for (const auto& [first, last] : cut) {
    if (first > last) continue;
    if (!ranges_.empty() && first <= ranges_.back().second + 1) {
      ranges_.back().second = std::max(ranges_.back().second, last);
    } else {
      ranges_.emplace_back(first, last);
    }
  }
}

CharacterSet CharacterSet::complement() const {
  CharacterSet out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) out.ranges_.emplace_back(next, kLastCharacter);
  out.normalise();
  return out;
}

bool CharacterSet::contains(uint32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) {
    return range.first <= character && character <= range.second;
  });
}

ExpressionPtr characters(CharacterSet set) {
  return std::make_shared<Expression>(
      Expression{.kind = Expression::Kind::Characters, .characters = std::move(set)});
}

ExpressionPtr any_character() { return characters(CharacterSet().complement()); }

ExpressionPtr literal(std::string_view text) {
  std::vector<ExpressionPtr> parts;
  for (const uint32_t character : code_points(text)) parts.push_back(characters({{character, character}}));
  return sequence(std::move(parts));
}

ExpressionPtr sequence(std::vector<ExpressionPtr> parts) {
  return std::make_shared<Expression>(
      Expression{.kind = Expression::Kind::Sequence, .parts = std::move(parts)});
}

ExpressionPtr choice(std::vector<ExpressionPtr> parts) {
  return std::make_shared<Expression>(
      Expression{.kind = Expression::Kind::Choice, .parts = std::move(parts)});
}

ExpressionPtr repeat(ExpressionPtr part, int least, int most) {
  return std::make_shared<Expression>(
      Expression{.kind = Expression::Kind::Repeat, .parts = {std::move(part)}, .least = least, .most = most});
}

ExpressionPtr optional(ExpressionPtr part) { return repeat(std::move(part), 0, 1); }

ExpressionPtr call(int rule) {
  return std::make_shared<Expression>(Expression{.kind = Expression::Kind::Call, .rule = rule});
}

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    uint32_t character = 0xFFFD;
    if (step.kind == Utf8Step::Valid) {
      const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
      constexpr uint32_t kLeadBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
      character = byte(0) & kLeadBits[step.length];
      for (size_t i = 1; i < step.length; ++i) character = character << 6 | (byte(i) & 0x3F);
    }
    out.push_back(character);
    text.remove_prefix(step.length);
  }
  return out;
}

}  // namespace sluice::text::grammar
