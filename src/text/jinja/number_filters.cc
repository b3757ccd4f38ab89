// Filters that make or change numbers, and `default`.
#include <cmath>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/literals.h"
#include "text/jinja/operators.h"
#include "text/jinja/tables.h"

namespace sluice::text::jinja {

namespace {

/// int(value) of a float: toward zero.
Value truncated(double value) {
  if (std::isnan(value) || std::isinf(value) || std::fabs(value) >= 0x1p63)
    refuse("a number does not fit in an integer of 64 bits");
  return Value::integer(static_cast<int64_t>(value));
}

Value to_int(Interp&, const Value& value, Arguments& arguments) {
  const Bound args("int", arguments, {"default", "base"});
  const Value otherwise = args[0] != nullptr ? *args[0] : Value::integer(0);
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  if (value.is(Kind::Float)) return std::isnan(value.as_double()) ? otherwise : truncated(value.as_double());
  if (!value.is_string()) return otherwise;
  const int64_t base = args.integer(1, 10);
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  if (const auto number = parse_integer(value.as_string(), static_cast<int>(base)))
    return Value::integer(*number);
  if (const auto number = parse_float(value.as_string()))
    return std::isnan(*number) ? otherwise : truncated(*number);
  return otherwise;
}

Value to_float(Interp&, const Value& value, Arguments& arguments) {
  const Bound args("float", arguments, {"default"});
  if (value.is_number()) return Value::real(value.as_double());
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  if (value.is_string()) {
    if (const auto number = parse_float(value.as_string())) return Value::real(*number);
  }
  return args[0] != nullptr ? *args[0] : Value::real(0);
}

Value absolute(Interp&, const Value& value, Arguments& arguments) {
  const Bound none("abs", arguments);
  if (value.is(Kind::Float)) return Value::real(std::fabs(value.as_double()));
  if (value.is_integral()) return value.as_int() < 0 ? negated(value) : Value::integer(value.as_int());
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  refuse("bad operand type for abs(): '{}'", type_name(value));
}

/// To a number of decimals, half to even on the exact binary value, as Python's round does.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 320) return value;
  if (precision < -320) return std::copysign(0.0, value);
  if (precision >= 0) return *parse_float(fmt::format("{:.{}f}", value, static_cast<int>(precision)));
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / unit) * unit;
}

Value round(Interp&, const Value& value, Arguments& arguments) {
  const Bound args("round", arguments, {"precision", "method"});
  const int64_t precision = args.integer(0, 0);
  const std::string method = args.string(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    refuse("round: the method must be common, ceil or floor");
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  if (!value.is_number()) refuse("round needs a number, not {}", type_name(value));
  if (method == "common") {
    if (value.is_integral() && precision >= 0) return Value::integer(value.as_int());
    const double number = rounded(value.as_double(), precision);
    return value.is_integral() ? truncated(number) : Value::real(number);
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_double() * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value otherwise(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("default", arguments, {"default_value", "boolean"});
  if (!value.is_undefined() && !(args.flag(1, false) && !truthy(value))) return value;
  return args[0] != nullptr ? *args[0] : in.heap().string({});
}

constexpr Row<Filter> kNumberFilters[] = {{"abs", absolute},   {"d", otherwise}, {"default", otherwise},
                                          {"float", to_float}, {"int", to_int},  {"round", round}};

}  // namespace

std::span<const Row<Filter>> number_filters() { return kNumberFilters; }

}  // namespace sluice::text::jinja
