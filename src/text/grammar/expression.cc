#include "text/grammar/expression.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text::grammar {
namespace {

constexpr uint64_t kMostSize = uint64_t{1} << 40;

ExpressionPtr make(Expression expression) {
  uint64_t parts = 0;
  for (const ExpressionPtr& part : expression.parts) {
    expression.depth = std::max(expression.depth, part->depth + 1);
    parts += part->size;
  }
  if (expression.depth > Expression::kMostDepth) fail("nested too deep");
  if (expression.kind == Expression::Kind::Repeat)
    parts *= static_cast<uint64_t>(std::max({expression.least, expression.most, 1}));
  expression.size = std::min(expression.size + parts, kMostSize);
  return std::make_shared<Expression>(std::move(expression));
}

}  // namespace

// Sorts, joins what touches, and takes the surrogates out: they are no characters.
CharacterSet::CharacterSet(Ranges ranges) {
  Ranges cut;
  cut.reserve(ranges.size());
  for (const auto& [first, last] : ranges) {
    if (first < kFirstSurrogate) cut.emplace_back(first, std::min(last, kFirstSurrogate - 1));
    if (last > kLastSurrogate) cut.emplace_back(std::max(first, kLastSurrogate + 1), last);
  }
  std::sort(cut.begin(), cut.end());
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
  Ranges out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) out.emplace_back(next, kLastCharacter);
  return CharacterSet(std::move(out));
}

ExpressionPtr characters(CharacterSet set) {
  const uint64_t size = 1 + set.ranges().size();
  return make({.kind = Expression::Kind::Characters, .characters = std::move(set), .size = size});
}

ExpressionPtr any_character() { return characters(CharacterSet().complement()); }

ExpressionPtr literal(std::string_view text) {
  std::string valid;
  if (utf8_valid_prefix(text) == text.size())
    valid = text;
  else
    for (const uint32_t character : code_points(text)) append_utf8(valid, character);
  const uint64_t size = 1 + valid.size();
  return make({.kind = Expression::Kind::Text, .text = std::move(valid), .size = size});
}

ExpressionPtr sequence(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return make({.kind = Expression::Kind::Sequence, .parts = std::move(parts)});
}

ExpressionPtr choice(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return make({.kind = Expression::Kind::Choice, .parts = std::move(parts)});
}

ExpressionPtr repeat(ExpressionPtr part, int least, int most) {
  if (part->kind == Expression::Kind::Repeat && part->least <= 1 && least <= 1 &&
      (part->most == 1 || part->most == Expression::kForever) &&
      (most == 1 || most == Expression::kForever)) {
    // (x?)*, (x+)? and so on: one repetition says it.
    least *= part->least;
    most = most == 1 ? part->most : Expression::kForever;
    part = part->parts.front();
  }
  return make({.kind = Expression::Kind::Repeat, .parts = {std::move(part)}, .least = least, .most = most});
}

ExpressionPtr optional(ExpressionPtr part) { return repeat(std::move(part), 0, 1); }

ExpressionPtr call(int rule) { return make({.kind = Expression::Kind::Call, .rule = rule}); }

ExpressionPtr at(Place place) { return make({.kind = Expression::Kind::At, .place = place}); }

ExpressionPtr both(ExpressionPtr left, ExpressionPtr right) {
  return make({.kind = Expression::Kind::Both, .parts = {std::move(left), std::move(right)}});
}

ExpressionPtr except(ExpressionPtr left, ExpressionPtr right) {
  return make({.kind = Expression::Kind::Except, .parts = {std::move(left), std::move(right)}});
}

namespace {

// The one length of all that an expression matches.
std::optional<uint64_t> only_length(const Expression& expression) {
  uint64_t all = 0;
  switch (expression.kind) {
    case Expression::Kind::Characters: return 1;
    case Expression::Kind::Text: return count_code_points(expression.text);
    case Expression::Kind::Sequence:
      for (const ExpressionPtr& part : expression.parts) {
        const auto length = only_length(*part);
        if (!length) return std::nullopt;
        all += *length;
      }
      return all;
    case Expression::Kind::Choice: {
      std::optional<uint64_t> only;
      for (const ExpressionPtr& part : expression.parts) {
        const auto length = only_length(*part);
        if (!length || length != only.value_or(*length)) return std::nullopt;
        only = length;
      }
      return only;
    }
    case Expression::Kind::Repeat: {
      const auto length = only_length(*expression.parts.front());
      if (!length || expression.least != expression.most) return std::nullopt;
      return std::min(*length * static_cast<uint64_t>(expression.least), kMostSize);
    }
    default: return std::nullopt;
  }
}

void flatten(const ExpressionPtr& expression, std::vector<ExpressionPtr>& out) {
  if (expression->kind != Expression::Kind::Sequence) return out.push_back(expression);
  for (const ExpressionPtr& part : expression->parts) flatten(part, out);
}

}  // namespace

std::optional<Lengths> with_lengths(const ExpressionPtr& expression) {
  if (expression->size < 64) return std::nullopt;
  std::vector<ExpressionPtr> parts;
  flatten(expression, parts);
  Lengths out{nullptr, 0, UINT64_MAX};
  bool found = false;
  uint64_t fixed = 0;
  for (ExpressionPtr& part : parts) {
    if (part->kind == Expression::Kind::Repeat && part->parts[0]->kind == Expression::Kind::Characters &&
        std::max(part->least, part->most) > 1) {
      if (found) return std::nullopt;
      found = true;
      out.least = static_cast<uint64_t>(part->least);
      if (part->most != Expression::kForever) out.most = static_cast<uint64_t>(part->most);
      part = repeat(part->parts[0], 0);
    } else if (const auto length = only_length(*part)) {
      fixed += *length;
    } else {
      return std::nullopt;
    }
  }
  if (!found) return std::nullopt;
  out.least += fixed;
  if (out.most != UINT64_MAX) out.most += fixed;
  out.content = sequence(std::move(parts));
  return out;
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

uint64_t count_code_points(std::string_view text) {
  uint64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(utf8_step(text).length);
  return count;
}

void append_utf8(std::string& text, uint32_t character) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      add(0xE0 | character >> 12);
    } else {
      add(0xF0 | character >> 18);
      add(0x80 | (character >> 12 & 0x3F));
    }
    add(0x80 | (character >> 6 & 0x3F));
  }
  add(0x80 | (character & 0x3F));
}

}  // namespace sluice::text::grammar
