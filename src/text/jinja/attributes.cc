// object.name and object[key].
#include "text/jinja/failure.h"
#include "text/jinja/interp.h"
#include "text/jinja/print.h"

namespace sluice::text::jinja {

namespace {

/// A name as messages show it: not longer than a line.
std::string shown(std::string_view name) {
  return "'" + std::string(name.substr(0, 80)) + (name.size() > 80 ? "..." : "") + "'";
}

Value no_attribute(Interp& in, const Value& object, std::string_view name) {
  if (object.is_none()) return in.heap().undefined("'None' has no attribute " + shown(name));
  return in.heap().undefined("'" + std::string(type_name(object)) + " object' has no attribute " +
                             shown(name));
}

Value bound_method(Interp& in, const Value& object, std::string_view name, Method method) {
  Function function;
  function.name = std::string(name);
  function.method = method;
  function.self = object;
  return in.heap().function(std::move(function));
}

Value neighbour(Interp& in, const Loop& loop, bool next) {
  const auto& items = loop.items->items;
  if (next && loop.index0 + 1 < items.size()) return items[loop.index0 + 1];
  if (!next && loop.index0 > 0) return items[loop.index0 - 1];
  return in.heap().undefined(next ? "there is no next item" : "there is no previous item");
}

/// loop.changed(...): whether the arguments differ from those of the call before.
Value loop_changed(Interp& in, Function& function, Arguments& arguments) {
  Loop& loop = function.self.as_loop();
  const Value now = in.heap().tuple(arguments.positional);
  const bool changed = loop.last_changed.is_undefined() || !equal(in.heap(), loop.last_changed, now);
  loop.last_changed = now;
  return Value::boolean(changed);
}

Value loop_cycle(Interp&, Function& function, Arguments& arguments) {
  if (arguments.positional.empty()) refuse("no items for cycling given");
  return arguments.positional[function.self.as_loop().index0 % arguments.positional.size()];
}

/// False when a loop has no such attribute.
bool loop_attribute(Interp& in, const Value& object, std::string_view name, Value& out) {
  const Loop& loop = object.as_loop();
  const auto integer = [&out](size_t value) { out = Value::integer(static_cast<int64_t>(value)); };
  const size_t length = loop.items->items.size();
  const auto function = [&](Function::Native native) {
    Function made;
    made.name = std::string(name);
    made.native = native;
    made.self = object;
    out = in.heap().function(std::move(made));
  };
  if (name == "index")
    integer(loop.index0 + 1);
  else if (name == "index0")
    integer(loop.index0);
  else if (name == "revindex")
    integer(length - loop.index0);
  else if (name == "revindex0")
    integer(length - loop.index0 - 1);
  else if (name == "first")
    out = Value::boolean(loop.index0 == 0);
  else if (name == "last")
    out = Value::boolean(loop.index0 + 1 == length);
  else if (name == "length")
    integer(length);
  else if (name == "depth")
    integer(static_cast<size_t>(loop.depth0) + 1);
  else if (name == "depth0")
    integer(static_cast<size_t>(loop.depth0));
  else if (name == "previtem")
    out = neighbour(in, loop, false);
  else if (name == "nextitem")
    out = neighbour(in, loop, true);
  else if (name == "cycle")
    function(loop_cycle);
  else if (name == "changed")
    function(loop_changed);
  else
    return false;
  return true;
}

/// What Python's getattr would find; false: nothing.
bool own_attribute(Interp& in, const Value& object, std::string_view name, Value& out) {
  if (const Method method = find_method(object, name)) {
    out = bound_method(in, object, name, method);
    return true;
  }
  switch (object.kind()) {
    case Kind::Namespace: {
      const Value* found = object.as_namespace().attributes.find(name);
      if (found != nullptr) out = *found;
      return found != nullptr;
    }
    case Kind::Loop: return loop_attribute(in, object, name, out);
    case Kind::Function: out = function_attribute(in, object, name); return !out.is_undefined();
    case Kind::List:
      if (object.as_list().flavour != Flavour::Group || (name != "grouper" && name != "list")) return false;
      out = object.as_list().items[name == "grouper" ? 0 : 1];
      return true;
    default: return false;
  }
}

}  // namespace

Value get_attribute(Interp& in, const Value& object, std::string_view name) {
  if (object.is_undefined()) refuse("{}", object.why_undefined());
  Value out;
  if (own_attribute(in, object, name, out)) return out;
  if (object.is(Kind::Dict)) {
    if (const Value* found = object.as_dict().find(name)) return *found;
  }
  return no_attribute(in, object, name);
}

Value get_item(Interp& in, const Value& object, const Value& key) {
  if (object.is_undefined()) refuse("{}", object.why_undefined());
  Heap& heap = in.heap();
  if (object.is(Kind::Dict)) {
    if (!key.is_string()) heap.step(static_cast<int64_t>(object.as_dict().size()));
    if (const Value* found = object.as_dict().find(key)) return *found;
  } else if (object.is(Kind::List) && key.is_integral() && !object.as_list().is_view() &&
             object.as_list().flavour != Flavour::Generator) {
    if (const Value* found = element(object.as_list(), key.as_int())) return *found;
  } else if (object.is_string() && key.is_integral()) {
    const Value one =
        Value::integer(key.as_int() == -1 ? INT64_MAX : key.as_int() + (key.as_int() < INT64_MAX));
    const Value character = slice(heap, object, Value::integer(key.as_int()), one, Value::none());
    if (!character.as_string().empty()) return character;
  }
  if (key.is_string()) {
    Value out;
    if (own_attribute(in, object, key.as_string(), out)) return out;
    return no_attribute(in, object, key.as_string());
  }
  if (key.is_undefined()) return heap.undefined(key.why_undefined());
  if (key.is_integral())
    return heap.undefined(fmt::format("{} object has no element {}", type_name(object), key.as_int()));
  return heap.undefined(fmt::format("{} object has no such element", type_name(object)));
}

}  // namespace sluice::text::jinja
