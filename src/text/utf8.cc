// Well-formed UTF-8 by the table of lead bytes: the range of the second byte depends on the first.
#include "text/utf8.h"

#include <cstdint>

namespace sluice::text {

namespace {

struct Lead {
  uint8_t length;       ///< of the whole character; 0: no character begins so
  uint8_t second_low;   ///< range of the second byte; every later byte is 80..BF
  uint8_t second_high;  //
};

Lead lead(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};  // a continuation byte, or the lead of an overlong form
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: more than U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const Lead first = lead(at(0));
  if (first.length == 0) return {Utf8Step::Invalid, 1};
  for (size_t i = 1; i < first.length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Incomplete, i};
    const uint8_t low = i == 1 ? first.second_low : 0x80;
    const uint8_t high = i == 1 ? first.second_high : 0xBF;
    if (at(i) < low || at(i) > high) return {Utf8Step::Invalid, i};
  }
  return {Utf8Step::Valid, first.length};
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {  // most of most texts
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Valid) break;
    at += step.length;
  }
  return at;
}

}  // namespace sluice::text
