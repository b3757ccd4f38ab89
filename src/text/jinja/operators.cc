// Comparison, membership, iteration and slices. Arithmetic is in arithmetic.cc.
#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/text_search.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

/// -1, 0, 1; nothing where a NaN is involved. Long double holds every int64_t and every double.
std::optional<int> order_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const auto wide = [](const Value& v) {
    return v.is_integral() ? static_cast<long double>(v.as_int()) : static_cast<long double>(v.as_double());
  };
  const long double x = wide(a), y = wide(b);
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

/// Lists compare with lists, tuples with tuples.
bool comparable_lists(const List& a, const List& b) {
  if (a.is_tuple() || b.is_tuple()) return a.is_tuple() && b.is_tuple();
  return a.flavour == b.flavour && (a.flavour == Flavour::List || a.flavour == Flavour::Range);
}

bool equal_dicts(Heap& heap, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(heap, value, *other)) return false;
  }
  return true;
}

bool equal_lists(Heap& heap, const List& a, const List& b) {
  if (&a == &b) return true;
  if (!comparable_lists(a, b) || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(heap, a.items[i], b.items[i])) return false;
  }
  return true;
}

std::string_view symbol(CompareOp op) {
  switch (op) {
    case CompareOp::Less: return "<";
    case CompareOp::LessEqual: return "<=";
    case CompareOp::Greater: return ">";
    case CompareOp::GreaterEqual: return ">=";
    default: return "==";
  }
}

/// The sign of a - b; nothing where a NaN is involved.
std::optional<int> order(Heap& heap, CompareOp op, const Value& a, const Value& b) {
  heap.step();
  const Heap::Level level(heap);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    heap.pass(std::min(a.as_string().size(), b.as_string().size()));
    const int sign = a.as_string().compare(b.as_string());  // UTF-8 sorts as code points do
    return sign < 0 ? -1 : sign > 0 ? 1 : 0;
  }
  if (a.is(Kind::List) && b.is(Kind::List) && comparable_lists(a.as_list(), b.as_list()) &&
      a.as_list().flavour != Flavour::Range) {
    const auto &x = a.as_list().items, &y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(heap, x[i], y[i])) return order(heap, op, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) refuse("{}", v->why_undefined());
  }
  refuse("'{}' not supported between instances of '{}' and '{}'", symbol(op), type_name(a), type_name(b));
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::String:
      if (!item.is_string()) refuse("'in <string>' requires string as left operand, not {}", type_name(item));
      heap.pass(container.as_string().size() + item.as_string().size());
      return find_text(container.as_string(), item.as_string()) != std::string::npos;
    case Kind::Dict:
      heap.step(1 + static_cast<int64_t>(item.is_string() ? 0 : container.as_dict().size()));
      if (item.is(Kind::List) || item.is(Kind::Dict)) refuse("unhashable type: '{}'", type_name(item));
      return container.as_dict().find(item) != nullptr;
    default: break;
  }
  for (const Value& one : items_of(heap, container)) {
    if (one.same_as(item) || equal(heap, one, item)) return true;
  }
  return false;
}

}  // namespace

bool numbers_equal(const Value& a, const Value& b) { return order_numbers(a, b) == 0; }

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  const Heap::Level level(heap);
  if (a.is_number() && b.is_number()) return numbers_equal(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::Undefined:
    case Kind::None: return true;
    case Kind::String:
      if (a.as_string().size() == b.as_string().size()) heap.pass(a.as_string().size());
      return a.as_string() == b.as_string();
    case Kind::List: return equal_lists(heap, a.as_list(), b.as_list());
    case Kind::Dict: return equal_dicts(heap, a.as_dict(), b.as_dict());
    default: return a.same_as(b);
  }
}

bool compare(Heap& heap, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::Equal: return equal(heap, a, b);
    case CompareOp::NotEqual: return !equal(heap, a, b);
    case CompareOp::In: return contains(heap, b, a);
    case CompareOp::NotIn: return !contains(heap, b, a);
    default: break;
  }
  const std::optional<int> sign = order(heap, op, a, b);
  if (!sign) return false;
  switch (op) {
    case CompareOp::Less: return *sign < 0;
    case CompareOp::LessEqual: return *sign <= 0;
    case CompareOp::Greater: return *sign > 0;
    default: return *sign >= 0;
  }
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is(Kind::List) || value.is(Kind::Dict) ||
         value.is(Kind::Loop);
}

std::vector<Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> out;
  const auto reserve = [&](size_t count) {
    heap.step(static_cast<int64_t>(count));
    heap.check_room(count, sizeof(Value));
    out.reserve(count);
  };
  switch (value.kind()) {
    case Kind::Undefined: return out;
    case Kind::String:
      reserve(count_characters(value.as_string()));
      for (const std::string_view one : split_characters(value.as_string()))
        out.push_back(heap.string(std::string(one)));
      return out;
    case Kind::Dict:
      reserve(value.as_dict().size());
      for (const auto& entry : value.as_dict().entries()) out.push_back(entry.first);
      return out;
    case Kind::List: {
      List& list = value.as_list();
      const size_t first = list.flavour == Flavour::Generator ? list.taken : 0;
      reserve(list.items.size() - first);
      out.assign(list.items.begin() + static_cast<std::ptrdiff_t>(first), list.items.end());
      if (list.flavour == Flavour::Generator) list.taken = list.items.size();
      return out;
    }
    default: refuse("'{}' object is not iterable", type_name(value));
  }
}

std::optional<size_t> length_of(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined: return 0;
    case Kind::String: heap.pass(value.as_string().size()); return count_characters(value.as_string());
    case Kind::Dict: return value.as_dict().size();
    case Kind::Loop: return value.as_loop().items->items.size();
    case Kind::List:
      if (value.as_list().flavour == Flavour::Generator) return std::nullopt;
      return value.as_list().items.size();
    default: return std::nullopt;
  }
}

const Value* element(const List& list, int64_t index) {
  const auto size = static_cast<int64_t>(list.items.size());
  if (index < 0) index += size;
  return index >= 0 && index < size ? &list.items[static_cast<size_t>(index)] : nullptr;
}

namespace {

/// The positions that a slice of `size` elements takes: `count` of them from `first` on.
struct Positions {
  int64_t first, step, count;
};

std::optional<int64_t> bound(const Value& value) {
  if (value.is_none() || value.is_undefined()) return std::nullopt;
  if (!value.is_integral()) refuse("slice indices must be integers or none, not '{}'", type_name(value));
  return value.as_int();
}

Positions positions(int64_t size, const Value& start, const Value& stop, const Value& step_value) {
  // A step beyond the size takes the same elements as one of that size, and cannot overflow.
  const int64_t step = std::clamp<int64_t>(bound(step_value).value_or(1), -size - 1, size + 1);
  if (step == 0 && bound(step_value) == 0) refuse("slice step cannot be zero");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> at, int64_t otherwise) {
    if (!at) return otherwise;
    return *at < 0 ? std::max(*at + size, low) : std::min(*at, high);
  };
  const int64_t first = place(bound(start), step > 0 ? low : high);
  const int64_t last = place(bound(stop), step > 0 ? high : low);
  const int64_t distance = step > 0 ? last - first : first - last;
  const int64_t stride = step > 0 ? step : -step;
  return {first, step, distance > 0 ? (distance - 1) / stride + 1 : 0};
}

Value slice_string(Heap& heap, const std::string& text, const Value& start, const Value& stop,
                   const Value& step) {
  heap.pass(text.size());
  const Positions at = positions(static_cast<int64_t>(count_characters(text)), start, stop, step);
  if (at.count == 0) return heap.string({});
  if (at.step == 1) {
    const size_t first = byte_of_character(text, static_cast<size_t>(at.first));
    const std::string_view rest = std::string_view(text).substr(first);
    heap.check_room(rest.size());
    return heap.string(std::string(rest.substr(0, byte_of_character(rest, static_cast<size_t>(at.count)))));
  }
  heap.check_room(text.size(), sizeof(std::string_view));
  const std::vector<std::string_view> characters = split_characters(text);
  Text out(heap);
  for (int64_t i = 0; i < at.count; ++i) out.append(characters[static_cast<size_t>(at.first + i * at.step)]);
  return out.value();
}

}  // namespace

Value slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_string()) return slice_string(heap, object.as_string(), start, stop, step);
  if (object.is_undefined()) refuse("{}", object.why_undefined());
  if (!object.is(Kind::List) || object.as_list().is_view() || object.as_list().flavour == Flavour::Generator)
    return heap.undefined(fmt::format("'{}' object cannot be sliced", type_name(object)));
  const List& list = object.as_list();
  const Positions at = positions(static_cast<int64_t>(list.items.size()), start, stop, step);
  heap.step(at.count);
  heap.check_room(static_cast<size_t>(at.count), sizeof(Value));
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(at.count));
  for (int64_t i = 0; i < at.count; ++i)
    out.push_back(list.items[static_cast<size_t>(at.first + i * at.step)]);
  return heap.list(std::move(out), list.flavour == Flavour::Group ? Flavour::Tuple : list.flavour);
}

}  // namespace sluice::text::jinja
