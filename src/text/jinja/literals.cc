// Literals as Python reads them.
#include "text/jinja/literals.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "text/jinja/failure.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

/// How many bytes are digits of the base, single underscores between them allowed.
size_t digits_length(std::string_view text, int base) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t digit = at > 0 && text[at] == '_' ? at + 1 : at;
    if (digit >= text.size() || digit_value(text[digit]) >= base) break;
    at = digit + 1;
  }
  return at;
}

std::string without_underscores(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != '_') out.push_back(c);
  }
  return out;
}

bool read_integer(std::string_view digits, int base, int64_t& out) {
  const std::string plain = without_underscores(digits);
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), out, base);
  return error == std::errc() && end == plain.data() + plain.size();
}

/// Digits with a fraction, an exponent or both; infinite when too large, 0 when too small.
double read_real(std::string_view digits) {
  const std::string plain = without_underscores(digits);
  double out = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), out);
  if (error != std::errc::result_out_of_range) return out;
  // from_chars leaves the value alone: too large or too small, the exponent's sign tells.
  const size_t e = plain.find_first_of("eE");
  const bool small = e != std::string::npos ? plain[e + 1] == '-' : plain[0] == '0';
  return small ? 0.0 : std::numeric_limits<double>::infinity();
}

/// The bytes of a fraction and exponent after `whole` digits; 0: it is an integer.
size_t float_tail(std::string_view text) {
  size_t at = 0;
  if (text.size() > 1 && text[0] == '.') {
    const size_t fraction = digits_length(text.substr(1), 10);
    if (fraction == 0) return 0;
    at = 1 + fraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const size_t sign = at + 1 < text.size() && (text[at + 1] == '+' || text[at + 1] == '-') ? 1 : 0;
    const size_t exponent = digits_length(text.substr(std::min(at + 1 + sign, text.size())), 10);
    if (exponent > 0) at += 1 + sign + exponent;
  }
  return at;
}

/// 16 after "0x", 8 after "0o", 2 after "0b"; 10 otherwise.
int prefixed_base(std::string_view text) {
  if (text.size() < 2 || text[0] != '0') return 10;
  switch (text[1]) {
    case 'x':
    case 'X': return 16;
    case 'o':
    case 'O': return 8;
    case 'b':
    case 'B': return 2;
    default: return 10;
  }
}

/// The digits behind 0x, 0o or 0b, where an underscore may come first; 0: there are none.
size_t prefixed_length(std::string_view text, int base) {
  const size_t skip = text.size() > 2 && text[2] == '_' ? 3 : 2;
  const size_t length = digits_length(text.substr(std::min(skip, text.size())), base);
  return length == 0 ? 0 : skip + length;
}

}  // namespace

Number read_number(std::string_view text, bool allow_float) {
  Number number;
  if (const int base = prefixed_base(text); base != 10) {
    number.length = prefixed_length(text, base);
    if (number.length != 0) {
      number.fits = read_integer(text.substr(2, number.length - 2), base, number.integer);
      return number;
    }
  }
  const size_t whole = digits_length(text, 10);
  const size_t tail = allow_float ? float_tail(text.substr(whole)) : 0;
  number.length = whole + tail;
  if (tail != 0) {
    number.is_float = true;
    number.real = read_real(text.substr(0, number.length));
    return number;
  }
  if (text[0] == '0') {  // 007 is 00 and 7, which no grammar allows
    while (number.length > 1 && digit_value(text[number.length - 1]) != 0) --number.length;
    return number;
  }
  number.fits = read_integer(text.substr(0, whole), 10, number.integer);
  return number;
}

namespace {

/// Reads up to `most` digits at the front; moves `text` past them and says how many there were.
size_t take_digits(std::string_view& text, int base, size_t most, uint32_t& value) {
  size_t count = 0;
  value = 0;
  while (count < most && count < text.size() && digit_value(text[count]) < base)
    value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit_value(text[count++]));
  text.remove_prefix(count);
  return count;
}

/// The escape behind a backslash; moves `text` past it.
void append_escape(std::string& out, std::string_view& text) {
  static constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
  const char c = text[0];
  uint32_t code = 0;
  if (const size_t at = kNames.find(c); at != kNames.npos) {
    out.push_back(kValues[at]);
    text.remove_prefix(1);
  } else if (c == '\n') {
    text.remove_prefix(1);
  } else if (c >= '0' && c <= '7') {
    take_digits(text, 8, 3, code);
    append_utf8(out, code);
  } else if (c == 'x' || c == 'u' || c == 'U') {
    const size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    text.remove_prefix(1);
    if (take_digits(text, 16, wanted, code) != wanted) refuse("\\{} needs {} hexadecimal digits", c, wanted);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) refuse("\\{}{:x} is no character", c, code);
    append_utf8(out, code);
  } else if (c == 'N') {
    refuse("\\N escapes are not supported");
  } else {
    out.push_back('\\');  // Python keeps what it does not know; the character comes next
  }
}

}  // namespace

std::string unescape(std::string_view inner) {
  std::string out;
  while (!inner.empty()) {
    const size_t plain = std::min(inner.find('\\'), inner.size());
    out += inner.substr(0, plain);
    inner.remove_prefix(plain);
    if (inner.empty()) break;
    inner.remove_prefix(1);
    if (inner.empty()) refuse("the string ends in a backslash");
    append_escape(out, inner);
  }
  return out;
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip_spaces(text, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const int prefix = prefixed_base(text);
  if (prefix != 10 && (base == 0 || base == prefix)) {
    text.remove_prefix(2);
    if (!text.empty() && text[0] == '_') text.remove_prefix(1);
    base = prefix;
  }
  if (base == 0) base = 10;
  if (text.empty() || digits_length(text, base) != text.size()) return std::nullopt;
  int64_t value = 0;
  if (!read_integer(text, base, value)) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_spaces(text, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const auto signed_value = [negative](double value) { return negative ? -value : value; };
  const std::string lower = to_lower(text);
  if (lower == "inf" || lower == "infinity") return signed_value(std::numeric_limits<double>::infinity());
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  std::string digits(text);
  if (!digits.empty() && digits[0] == '.') {  // ".5"
    if (digits_length(std::string_view(digits).substr(1), 10) == 0) return std::nullopt;
    digits.insert(digits.begin(), '0');
  }
  const size_t whole = digits_length(digits, 10);
  if (whole == 0) return std::nullopt;
  if (whole < digits.size() && digits[whole] == '.' &&
      (whole + 1 == digits.size() || digits[whole + 1] == 'e' || digits[whole + 1] == 'E'))
    digits.insert(digits.begin() + static_cast<std::ptrdiff_t>(whole) + 1, '0');  // "5." and "5.e3"
  if (whole + float_tail(std::string_view(digits).substr(whole)) != digits.size()) return std::nullopt;
  return signed_value(read_real(digits));
}

}  // namespace sluice::text::jinja
