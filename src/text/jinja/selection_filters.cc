// map, select, reject and their kin: filters that apply another filter or a test to each item.
#include "text/jinja/arguments.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/tables.h"

namespace sluice::text::jinja {

namespace {

/// Takes the first positional argument off.
Value take_first(Arguments& arguments, std::string_view what) {
  if (arguments.positional.empty()) refuse("{} needs an argument", what);
  Value out = arguments.positional[0];
  arguments.positional.erase(arguments.positional.begin());
  return out;
}

/// map(attribute='a.b', default=x)
Value map_attribute(Interp& in, const Value& value, const Arguments& arguments) {
  Value attribute = Value::none();
  const Value* otherwise = nullptr;
  for (const auto& [name, given] : arguments.named) {
    if (name == "attribute")
      attribute = given;
    else if (name == "default")
      otherwise = &given;
    else
      refuse("map has no argument '{}'", name);
  }
  const AttributePath path(in, attribute);
  std::vector<Value> out;
  for (const Value& item : items_of(in.heap(), value)) out.push_back(path.of(in, item, otherwise));
  return in.heap().list(std::move(out), Flavour::Generator);
}

Value map(Interp& in, const Value& value, Arguments& arguments) {
  const Heap::Level level(in.heap());
  if (!truthy(value)) return in.heap().list({}, Flavour::Generator);
  if (arguments.positional.empty() && !arguments.named.empty()) return map_attribute(in, value, arguments);
  const Value name = take_first(arguments, "map");
  const Filter filter = name.is_string() ? find_filter(name.as_string()) : nullptr;
  if (filter == nullptr) refuse("map: there is no filter '{}'", name.is_string() ? name.as_string() : "?");
  std::vector<Value> out;
  for (const Value& item : items_of(in.heap(), value)) {
    Arguments each = arguments;
    out.push_back(filter(in, item, each));
  }
  return in.heap().list(std::move(out), Flavour::Generator);
}

/// The items for which a test, or without one their truth, comes out as `wanted`.
Value chosen(Interp& in, const Value& value, Arguments& arguments, bool wanted, bool by_attribute) {
  const Heap::Level level(in.heap());
  if (!truthy(value)) return in.heap().list({}, Flavour::Generator);
  const AttributePath path(
      in, by_attribute ? take_first(arguments, "the name of an attribute: selectattr") : Value::none());
  Test test = nullptr;
  if (!arguments.positional.empty()) {
    const Value name = take_first(arguments, "select");
    test = name.is_string() ? find_test(name.as_string()) : nullptr;
    if (test == nullptr) refuse("there is no test '{}'", name.is_string() ? name.as_string() : "?");
  }
  std::vector<Value> out;
  for (Value& item : items_of(in.heap(), value)) {
    Arguments each = arguments;
    const Value looked_at = path.of(in, item);
    if ((test != nullptr ? test(in, looked_at, each) : truthy(looked_at)) == wanted)
      out.push_back(std::move(item));
  }
  return in.heap().list(std::move(out), Flavour::Generator);
}

Value select(Interp& in, const Value& value, Arguments& arguments) {
  return chosen(in, value, arguments, true, false);
}
Value reject(Interp& in, const Value& value, Arguments& arguments) {
  return chosen(in, value, arguments, false, false);
}
Value selectattr(Interp& in, const Value& value, Arguments& arguments) {
  return chosen(in, value, arguments, true, true);
}
Value rejectattr(Interp& in, const Value& value, Arguments& arguments) {
  return chosen(in, value, arguments, false, true);
}

constexpr Row<Filter> kSelectionFilters[] = {{"map", map},
                                             {"reject", reject},
                                             {"rejectattr", rejectattr},
                                             {"select", select},
                                             {"selectattr", selectattr}};

}  // namespace

std::span<const Row<Filter>> selection_filters() { return kSelectionFilters; }

}  // namespace sluice::text::jinja
