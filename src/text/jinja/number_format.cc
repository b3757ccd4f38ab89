// Numbers as text with a precision.
#include "text/jinja/number_format.h"

#include <cmath>

#include "text/jinja/failure.h"

namespace sluice::text::jinja {

std::string integer_digits(int64_t value, char type) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  switch (type) {
    case 'b': return fmt::format("{:b}", magnitude);
    case 'o': return fmt::format("{:o}", magnitude);
    case 'x': return fmt::format("{:x}", magnitude);
    case 'X': return fmt::format("{:X}", magnitude);
    default: return fmt::format("{}", magnitude);
  }
}

std::string float_digits(double value, char type, int64_t precision) {
  if (precision > kMaxPrecision) refuse("a format's precision is too large");
  const double magnitude = std::fabs(value);
  const int p = static_cast<int>(precision);
  const bool capitals = type >= 'A' && type <= 'Z';
  if (!std::isfinite(value)) {
    if (std::isnan(value)) return capitals ? "NAN" : "nan";
    return capitals ? "INF" : "inf";
  }
  switch (type) {
    case 'e': return fmt::format("{:.{}e}", magnitude, p);
    case 'E': return fmt::format("{:.{}E}", magnitude, p);
    case 'g': return fmt::format("{:.{}g}", magnitude, p == 0 ? 1 : p);
    case 'G': return fmt::format("{:.{}G}", magnitude, p == 0 ? 1 : p);
    default: return fmt::format("{:.{}f}", magnitude, p);
  }
}

int64_t integer_for_format(const Value& value, char type) {
  if (value.is_integral()) return value.as_int();
  if (value.is(Kind::Float) && (type == 'd' || type == 'i' || type == 'u')) {
    if (!std::isfinite(value.as_double()) || std::fabs(value.as_double()) >= 0x1p63)
      refuse("a number does not fit in an integer of 64 bits");
    return static_cast<int64_t>(value.as_double());
  }
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  refuse("%{} format: an integer is required, not {}", type, type_name(value));
}

double float_for_format(const Value& value) {
  if (value.is_number()) return value.as_double();
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  refuse("must be real number, not {}", type_name(value));
}

std::string_view sign_text(bool negative, char flag) {
  if (negative) return "-";
  return flag == '+' ? "+" : flag == ' ' ? " " : "";
}

}  // namespace sluice::text::jinja
