// Python's methods of lists, tuples and dicts. Of those that change their object, append and pop work,
// because published templates call them; all others are refused, as transformers does with every one of them.
#include <algorithm>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/tables.h"

namespace sluice::text::jinja {

namespace {

Value refused(Interp&, const Value& self, Arguments&) {
  refuse("a template may not change a {} in this way", type_name(self));
}

List& changeable(const Value& self, std::string_view method) {
  if (self.as_list().flavour != Flavour::List)
    refuse("'{}' object has no method '{}'", type_name(self), method);
  return self.as_list();
}

Value append(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("append", arguments, {"object"}, 1);
  in.heap().take(2 * sizeof(Value));  // vectors grow by doubling
  changeable(self, "append").items.push_back(*args[0]);
  return Value::none();
}

Value pop(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("pop", arguments, {"index"});
  List& list = changeable(self, "pop");
  const Value* found = element(list, args.integer(0, -1));
  if (found == nullptr) refuse("pop: there is no such element in a list of {}", list.items.size());
  Value out = *found;
  in.heap().step(static_cast<int64_t>(list.items.size()));
  list.items.erase(list.items.begin() + (found - list.items.data()));
  return out;
}

Value copy_list(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("copy", arguments);
  return in.heap().list(changeable(self, "copy").items);
}

Value count(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("count", arguments, {"value"}, 1);
  int64_t found = 0;
  for (const Value& item : self.as_list().items) found += equal(in.heap(), item, *args[0]);
  return Value::integer(found);
}

Value index(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("index", arguments, {"value"}, 1);
  const auto& items = self.as_list().items;
  const auto at = std::find_if(items.begin(), items.end(),
                               [&](const Value& item) { return equal(in.heap(), item, *args[0]); });
  if (at == items.end()) refuse("the value is not in the list");
  return Value::integer(at - items.begin());
}

Value get(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("get", arguments, {"key", "default"}, 1);
  if (!args[0]->is_string()) in.heap().step(static_cast<int64_t>(self.as_dict().size()));
  if (args[0]->is(Kind::List) || args[0]->is(Kind::Dict))
    refuse("unhashable type: '{}'", type_name(*args[0]));
  const Value* found = self.as_dict().find(*args[0]);
  return found != nullptr ? *found : args.value(1);
}

Value keys(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("keys", arguments);
  return in.heap().list(items_of(in.heap(), self), Flavour::Keys);
}

Value values(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("values", arguments);
  in.heap().step(static_cast<int64_t>(self.as_dict().size()));
  std::vector<Value> out;
  for (const auto& entry : self.as_dict().entries()) out.push_back(entry.second);
  return in.heap().list(std::move(out), Flavour::Values);
}

Value items(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("items", arguments);
  std::vector<Value> out;
  for (const auto& [key, value] : self.as_dict().entries()) out.push_back(in.heap().tuple({key, value}));
  return in.heap().list(std::move(out), Flavour::Items);
}

Value copy_dict(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("copy", arguments);
  return in.heap().dict(self.as_dict());
}

constexpr Row<Method> kListMethods[] = {{"append", append},   {"clear", refused},  {"copy", copy_list},
                                        {"count", count},     {"extend", refused}, {"index", index},
                                        {"insert", refused},  {"pop", pop},        {"remove", refused},
                                        {"reverse", refused}, {"sort", refused}};

constexpr Row<Method> kDictMethods[] = {{"clear", refused},   {"copy", copy_dict},     {"get", get},
                                        {"items", items},     {"keys", keys},          {"pop", refused},
                                        {"popitem", refused}, {"setdefault", refused}, {"update", refused},
                                        {"values", values}};

}  // namespace

std::span<const Row<Method>> list_methods() { return kListMethods; }
std::span<const Row<Method>> dict_methods() { return kDictMethods; }

}  // namespace sluice::text::jinja
