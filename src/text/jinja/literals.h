// Literals as Python reads them: numbers, and the escapes of strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text::jinja {

struct Number {
  size_t length = 0;  ///< bytes that belong to it
  bool is_float = false;
  bool fits = true;  ///< an integer of 64 bits
  int64_t integer = 0;
  double real = 0;
};

/// The number literal at the front of a text that starts with a digit: 1_000, 0x1f, 2.5e-3.
/// Without `allow_float` it ends before a fraction or exponent.
Number read_number(std::string_view text, bool allow_float);

/// What a string literal's inside stands for. Throws Failure for an escape that is none.
std::string unescape(std::string_view inner);

/// Python's int(text, base), base 0 or 2 to 36; nothing when it is no integer, or not one of 64 bits.
std::optional<int64_t> parse_integer(std::string_view text, int base);
/// Python's float(text).
std::optional<double> parse_float(std::string_view text);

}  // namespace sluice::text::jinja
