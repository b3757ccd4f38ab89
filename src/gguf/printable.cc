// Text from files made safe for terminals and logs: whoever made a file must not get to steer either.
#include <fmt/format.h>

#include "gguf/gguf.h"

namespace sluice::gguf {
namespace {

/// One character of UTF-8: its code point and length in bytes; length 0 when the bytes are no UTF-8.
struct Character {
  uint32_t code = 0;
  size_t length = 0;
};

Character decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (overlong || surrogate || code > 0x10FFFF) return {};
  return {code, length};
}

/// Characters that move the cursor, change colours or turn the direction of the text around them.
bool steers(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x200E && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

void escape(uint32_t code, std::string& out) {
  switch (code) {
    case '\n': out += "\\n"; break;
    case '\r': out += "\\r"; break;
    case '\t': out += "\\t"; break;
    default: out += code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
  }
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = decode(text.substr(at));
    const size_t length = character.length == 0 ? 1 : character.length;
    if (at + length > limit) return out + "...";
    if (character.length == 0) {
      escape(static_cast<unsigned char>(text[at]), out);
    } else if (steers(character.code)) {
      escape(character.code, out);
    } else {
      out += text.substr(at, length);
    }
    at += length;
  }
  return out;
}

}  // namespace sluice::gguf
