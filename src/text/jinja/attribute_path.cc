// Attribute paths and sort keys.
#include "text/jinja/attribute_path.h"

#include <algorithm>

#include "text/jinja/literals.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

AttributePath::AttributePath(Interp& in, const Value& path) {
  if (path.is_none()) return;
  if (!path.is_string()) {
    parts_.push_back(path);
    return;
  }
  std::string_view rest = path.as_string();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    const auto index = digits ? parse_integer(part, 10) : std::nullopt;
    parts_.push_back(index ? Value::integer(*index) : in.heap().string(std::string(part)));
    if (dot == rest.size()) break;
    rest.remove_prefix(dot + 1);
  }
}

Value AttributePath::of(Interp& in, const Value& item, const Value* otherwise) const {
  Value value = item;
  for (const Value& part : parts_) {
    value = get_item(in, value, part);
    if (value.is_undefined() && otherwise != nullptr && !otherwise->is_none()) value = *otherwise;
  }
  return value;
}

Value lower_case(Heap& heap, const Value& value) {
  if (!value.is_string()) return value;
  heap.pass(value.as_string().size());
  heap.check_room(value.as_string().size(), 2);
  return heap.string(to_lower(value.as_string()));
}

std::vector<Keyed> keyed(Interp& in, std::vector<Value> values, const Value& attribute, bool case_sensitive) {
  std::vector<AttributePath> paths;
  if (attribute.is_string()) {
    const std::string& names = attribute.as_string();
    for (size_t start = 0; start <= names.size();) {
      const size_t comma = std::min(names.find(',', start), names.size());
      paths.emplace_back(in, in.heap().string(names.substr(start, comma - start)));
      start = comma + 1;
    }
  } else {
    paths.emplace_back(in, attribute);
  }
  std::vector<Keyed> out;
  out.reserve(values.size());
  for (Value& value : values) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      const Value key = path.of(in, value);
      keys.push_back(case_sensitive ? key : lower_case(in.heap(), key));
    }
    const bool one = keys.size() == 1;
    out.push_back({one ? keys[0] : in.heap().list(std::move(keys)), std::move(value)});
  }
  return out;
}

void sort_by_key(Heap& heap, std::vector<Keyed>& items, bool reverse) {
  // Reversed, equal items keep their order, as with Python's sort.
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(heap, CompareOp::Less, b.key, a.key)
                   : compare(heap, CompareOp::Less, a.key, b.key);
  });
}

std::vector<Value> values_of(std::vector<Keyed> items) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (Keyed& item : items) out.push_back(std::move(item.value));
  return out;
}

}  // namespace sluice::text::jinja
