// + - * / // % ** with Python's rules: integers stay integers, floor division rounds down, and what does not
// fit in 64 bits is refused rather than wrapped.
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace sluice::text::jinja {

namespace {

std::string_view symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::Add: return "+";
    case BinaryOp::Subtract: return "-";
    case BinaryOp::Multiply: return "*";
    case BinaryOp::Divide: return "/";
    case BinaryOp::FloorDivide: return "//";
    case BinaryOp::Modulo: return "%";
    case BinaryOp::Power: return "**";
  }
  return "?";
}

[[noreturn]] void too_large() { refuse("an integer does not fit in 64 bits"); }
[[noreturn]] void zero_division() { refuse("division by zero"); }

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) too_large();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

double float_power(double a, double b) {
  if (a == 0 && b < 0) zero_division();
  if (a < 0 && std::isfinite(b) && b != std::floor(b)) refuse("a power is a complex number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) refuse("a power is too large");
  return result;
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  const double quotient = (a - float_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;  // the quotient was a whole number but for rounding
}

Value integers(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::Add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      break;
    case BinaryOp::Subtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      break;
    case BinaryOp::Multiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      break;
    case BinaryOp::Divide:
      if (b == 0) zero_division();
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::FloorDivide:
    case BinaryOp::Modulo: {
      if (b == 0) zero_division();
      if (b == -1) return op == BinaryOp::Modulo ? Value::integer(0) : negated(Value::integer(a));
      const bool below = a % b != 0 && (a < 0) != (b < 0);
      result = op == BinaryOp::Modulo ? a % b + (below ? b : 0) : a / b - (below ? 1 : 0);
      break;
    }
    case BinaryOp::Power:
      if (b < 0) return Value::real(float_power(static_cast<double>(a), static_cast<double>(b)));
      result = power(a, b);
      break;
  }
  return Value::integer(result);
}

Value floats(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::Add: return Value::real(a + b);
    case BinaryOp::Subtract: return Value::real(a - b);
    case BinaryOp::Multiply: return Value::real(a * b);
    case BinaryOp::Power: return Value::real(float_power(a, b));
    default: break;
  }
  if (b == 0) zero_division();
  if (op == BinaryOp::Divide) return Value::real(a / b);
  return Value::real(op == BinaryOp::Modulo ? float_modulo(a, b) : float_floor_divide(a, b));
}

/// A string or list times an integer, in either order; undefined when the operands are something else.
bool repeated(Heap& heap, const Value& a, const Value& b, Value& out) {
  const bool swapped = a.is_integral();
  const Value &sequence = swapped ? b : a, &number = swapped ? a : b;
  if (!number.is_integral()) return false;
  const auto count = static_cast<size_t>(std::max<int64_t>(number.as_int(), 0));
  if (sequence.is_string()) {
    const std::string& unit = sequence.as_string();
    heap.check_room(count, unit.size());
    Text text(heap);
    for (size_t i = 0; i < count && !unit.empty(); ++i) text.append(unit);
    out = text.value();
    return true;
  }
  if (!sequence.is(Kind::List)) return false;
  const List& list = sequence.as_list();
  if (list.flavour != Flavour::List && !list.is_tuple()) return false;
  heap.check_room(count, list.items.size() * sizeof(Value));
  heap.step(static_cast<int64_t>(count * list.items.size()));
  std::vector<Value> items;
  items.reserve(count * list.items.size());
  for (size_t i = 0; i < count && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  out = heap.list(std::move(items), list.is_tuple() ? Flavour::Tuple : Flavour::List);
  return true;
}

/// String with string, list with list, tuple with tuple; false when the operands are something else.
bool joined(Heap& heap, const Value& a, const Value& b, Value& out) {
  if (a.is_string() && b.is_string()) {
    Text text(heap);
    text.append(a.as_string());
    text.append(b.as_string());
    out = text.value();
    return true;
  }
  if (!a.is(Kind::List) || !b.is(Kind::List)) return false;
  const List &x = a.as_list(), &y = b.as_list();
  const bool lists = x.flavour == Flavour::List && y.flavour == Flavour::List;
  if (!lists && !(x.is_tuple() && y.is_tuple())) return false;
  heap.check_room(x.items.size() + y.items.size(), sizeof(Value));
  std::vector<Value> items;
  items.reserve(x.items.size() + y.items.size());
  items.insert(items.end(), x.items.begin(), x.items.end());
  items.insert(items.end(), y.items.begin(), y.items.end());
  out = heap.list(std::move(items), lists ? Flavour::List : Flavour::Tuple);
  return true;
}

}  // namespace

Value arithmetic(Heap& heap, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return floats(op, a.as_double(), b.as_double());
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined() && !(op == BinaryOp::Modulo && a.is_string())) refuse("{}", v->why_undefined());
  }
  Value out;
  if (op == BinaryOp::Add && joined(heap, a, b, out)) return out;
  if (op == BinaryOp::Multiply && repeated(heap, a, b, out)) return out;
  if (op == BinaryOp::Modulo && a.is_string()) return format_percent(heap, a.as_string(), b);
  if (op == BinaryOp::Add && a.is_string())
    refuse("can only concatenate str (not \"{}\") to str", type_name(b));
  refuse("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b));
}

Value negated(const Value& value) {
  if (value.is(Kind::Float)) return Value::real(-value.as_double());
  if (value.is_integral()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, value.as_int(), &result)) too_large();
    return Value::integer(result);
  }
  if (value.is_undefined()) refuse("{}", value.why_undefined());
  refuse("bad operand type for unary -: '{}'", type_name(value));
}

}  // namespace sluice::text::jinja
