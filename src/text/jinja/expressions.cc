// What each kind of expression evaluates to.
#include "text/jinja/ast.h"
#include "text/jinja/failure.h"
#include "text/jinja/interp.h"
#include "text/jinja/print.h"

namespace sluice::text::jinja {

Value LiteralExpr::eval(Interp&) const { return value; }

Value NameExpr::eval(Interp& in) const { return in.lookup(symbol); }

Value ListExpr::eval(Interp& in) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExprPtr& item : items) values.push_back(in.eval(*item));
  return in.heap().list(std::move(values), flavour);
}

Value DictExpr::eval(Interp& in) const {
  Dict dict;
  for (const auto& [key, value] : entries) {
    const Value k = in.eval(*key);
    dict.set(k, in.eval(*value));
  }
  return in.heap().dict(std::move(dict));
}

Value AttributeExpr::eval(Interp& in) const { return get_attribute(in, in.eval(*object), name); }

Value ItemExpr::eval(Interp& in) const {
  const Value of = in.eval(*object);
  return get_item(in, of, in.eval(*key));
}

Value SliceExpr::eval(Interp& in) const {
  const Value of = in.eval(*object);
  const auto part = [&in](const ExprPtr& node) { return node ? in.eval(*node) : Value::none(); };
  const Value first = part(start), last = part(stop);
  return slice(in.heap(), of, first, last, part(step));
}

Value CallExpr::call(Interp& in, const Value* caller) const {
  const auto with_caller = [&] {
    Arguments out = in.evaluate(arguments);
    if (caller != nullptr) out.named.emplace_back("caller", *caller);
    return out;
  };
  // object.method(...) needs no value for the method in between.
  if (const auto* attribute = dynamic_cast<const AttributeExpr*>(callee.get())) {
    const Value object = in.eval(*attribute->object);
    if (const Method method = find_method(object, attribute->name)) {
      Arguments out = with_caller();
      return method(in, object, out);
    }
    const Value function = get_attribute(in, object, attribute->name);
    Arguments out = with_caller();
    return in.call(function, out);
  }
  const Value function = in.eval(*callee);
  Arguments out = with_caller();
  return in.call(function, out);
}

Value FilterExpr::eval(Interp& in) const {
  if (filter == nullptr) refuse("there is no filter '{}'", name);
  const Value input = in.eval(*value);
  Arguments out = in.evaluate(arguments);
  return filter(in, input, out);
}

Value TestExpr::eval(Interp& in) const {
  if (test == nullptr) refuse("there is no test '{}'", name);
  const Value input = in.eval(*value);
  Arguments out = in.evaluate(arguments);
  return Value::boolean(test(in, input, out));
}

Value CapturedExpr::eval(Interp& in) const { return in.captured(); }

Value UnaryExpr::eval(Interp& in) const {
  const Value value = in.eval(*operand);
  switch (op) {
    case Not: return Value::boolean(!truthy(value));
    case Minus: return negated(value);
    case Plus:
      if (value.is_integral()) return Value::integer(value.as_int());
      if (value.is(Kind::Float)) return value;
      if (value.is_undefined()) refuse("{}", value.why_undefined());
      refuse("bad operand type for unary +: '{}'", type_name(value));
  }
  return value;
}

Value BinaryExpr::eval(Interp& in) const {
  const Value a = in.eval(*left);
  return arithmetic(in.heap(), op, a, in.eval(*right));
}

Value LogicExpr::eval(Interp& in) const {
  Value a = in.eval(*left);
  return truthy(a) == is_and ? in.eval(*right) : a;
}

Value CompareExpr::eval(Interp& in) const {
  Value a = in.eval(*first);
  for (const auto& [op, node] : rest) {
    Value b = in.eval(*node);
    if (!compare(in.heap(), op, a, b)) return Value::boolean(false);
    a = std::move(b);
  }
  return Value::boolean(true);
}

Value ConcatExpr::eval(Interp& in) const {
  Text text(in.heap());
  for (const ExprPtr& part : parts) print_str(text, in.heap(), in.eval(*part));
  return text.value();
}

Value ConditionalExpr::eval(Interp& in) const {
  if (in.test(*condition)) return in.eval(*yes);
  if (no) return in.eval(*no);
  return in.heap().undefined("the inline if-expression was false and has no else");
}

}  // namespace sluice::text::jinja
