// Numbers as text with a precision, as both ways of Python's formatting need them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// Precisions and widths beyond this are refused: nobody means them.
inline constexpr int64_t kMaxPrecision = 1000;

/// |value| in base 2, 8, 10 or 16, by the type d, b, o, x or X.
std::string integer_digits(int64_t value, char type);
/// |value| by the type e, f, g or their capitals.
std::string float_digits(double value, char type, int64_t precision);
/// int(value) for a format like %d. Throws Failure that says what the format needed.
int64_t integer_for_format(const Value& value, char type);
double float_for_format(const Value& value);
/// "-", "+", " " or nothing: the sign under the flag '-', '+' or ' '.
std::string_view sign_text(bool negative, char flag);

}  // namespace sluice::text::jinja
