// The table of tests: what may stand behind `is`.
#include <algorithm>
#include <cmath>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/tables.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

/// A test without arguments.
template <bool (*holds)(const Value&)>
bool plain(Interp&, const Value& value, Arguments& arguments) {
  const Bound none("the test", arguments);
  return holds(value);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is(Kind::Bool); }
bool is_true(const Value& v) { return v.is(Kind::Bool) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Kind::Bool) && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is(Kind::Int); }
bool is_float(const Value& v) { return v.is(Kind::Float); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is(Kind::Dict); }
bool is_callable(const Value& v) { return v.is(Kind::Function) || v.is(Kind::Loop) || v.is_undefined(); }
bool is_escaped(const Value&) { return false; }

/// Has a length and indices.
bool is_sequence(const Value& v) {
  if (v.is(Kind::List)) return !v.as_list().is_view() && v.as_list().flavour != Flavour::Generator;
  return v.is_undefined() || v.is_string() || v.is(Kind::Dict);
}

/// value % divisor, which Python defines for strings too, but no template means that.
Value remainder(Interp& in, const Value& value, const Value& divisor) {
  if (value.is_string()) refuse("the test needs a number, not a string");
  return arithmetic(in.heap(), BinaryOp::Modulo, value, divisor);
}

bool is_odd(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("odd", arguments);
  return numbers_equal(remainder(in, value, Value::integer(2)), Value::integer(1));
}

bool is_even(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("even", arguments);
  return numbers_equal(remainder(in, value, Value::integer(2)), Value::integer(0));
}

bool is_divisible(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("divisibleby", arguments, {"num"}, 1);
  return numbers_equal(remainder(in, value, *args[0]), Value::integer(0));
}

/// All letters with case are of one case, and there is one.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
bool is_case(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("the test", arguments);
  const Value text = to_string(in.heap(), value);
  in.heap().pass(text.as_string().size());
  bool found = false;
  for (std::string_view rest = text.as_string(); !rest.empty();) {
    const Character c = first_character(rest);
    if (other(c.code)) return false;
    found |= wanted(c.code);
    rest.remove_prefix(c.length);
  }
  return found;
}

bool is_same(Interp&, const Value& value, Arguments& arguments) {
  const Bound args("sameas", arguments, {"other"}, 1);
  return value.same_as(*args[0]);
}

template <CompareOp op>
bool compares(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("the test", arguments, {"other"}, 1);
  return compare(in.heap(), op, value, *args[0]);
}

bool is_iterable_test(const Value& value) { return is_iterable(value); }

bool is_filter(Interp&, const Value& value, Arguments& arguments) {
  const Bound none("filter", arguments);
  return value.is_string() && find_filter(value.as_string()) != nullptr;
}

bool is_test(Interp&, const Value& value, Arguments& arguments) {
  const Bound none("test", arguments);
  return value.is_string() && find_test(value.as_string()) != nullptr;
}

constexpr Row<Test> kTests[] = {{"boolean", plain<is_boolean>},
                                {"callable", plain<is_callable>},
                                {"defined", plain<is_defined>},
                                {"divisibleby", is_divisible},
                                {"eq", compares<CompareOp::Equal>},
                                {"equalto", compares<CompareOp::Equal>},
                                {"==", compares<CompareOp::Equal>},
                                {"escaped", plain<is_escaped>},
                                {"even", is_even},
                                {"false", plain<is_false>},
                                {"filter", is_filter},
                                {"float", plain<is_float>},
                                {"ge", compares<CompareOp::GreaterEqual>},
                                {">=", compares<CompareOp::GreaterEqual>},
                                {"greaterthan", compares<CompareOp::Greater>},
                                {"gt", compares<CompareOp::Greater>},
                                {">", compares<CompareOp::Greater>},
                                {"in", compares<CompareOp::In>},
                                {"integer", plain<is_integer>},
                                {"iterable", plain<is_iterable_test>},
                                {"le", compares<CompareOp::LessEqual>},
                                {"<=", compares<CompareOp::LessEqual>},
                                {"lessthan", compares<CompareOp::Less>},
                                {"lower", is_case<is_lower, is_upper>},
                                {"lt", compares<CompareOp::Less>},
                                {"<", compares<CompareOp::Less>},
                                {"mapping", plain<is_mapping>},
                                {"ne", compares<CompareOp::NotEqual>},
                                {"!=", compares<CompareOp::NotEqual>},
                                {"none", plain<is_none>},
                                {"number", plain<is_number>},
                                {"odd", is_odd},
                                {"sameas", is_same},
                                {"sequence", plain<is_sequence>},
                                {"string", plain<is_string>},
                                {"test", is_test},
                                {"true", plain<is_true>},
                                {"undefined", plain<is_undefined>},
                                {"upper", is_case<is_upper, is_lower>}};

}  // namespace

Test find_test(std::string_view name) {
  for (const Row<Test>& row : kTests) {
    if (row.name == name) return row.entry;
  }
  return nullptr;
}

}  // namespace sluice::text::jinja
