// The functions that every template can call.
#include <algorithm>
#include <limits>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/tables.h"

namespace sluice::text::jinja {

namespace {

/// What Jinja's sandbox allows.
constexpr uint64_t kMaxRange = 100000;

Value range(Interp& in, Function&, Arguments& arguments) {
  const Bound args("range", arguments, {"start", "stop", "step"}, 1);
  for (size_t i = 0; i < 3; ++i) {
    if (args[i] != nullptr && !args[i]->is_integral())
      refuse("'{}' object cannot be interpreted as an integer", type_name(*args[i]));
  }
  const int64_t start = args[1] != nullptr ? args[0]->as_int() : 0;
  const int64_t stop = args[1] != nullptr ? args[1]->as_int() : args[0]->as_int();
  const int64_t step = args[2] != nullptr ? args[2]->as_int() : 1;
  if (step == 0) refuse("range() arg 3 must not be zero");
  const auto apart = [](int64_t low, int64_t high) {  // without overflow
    return static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  };
  const uint64_t distance =
      step > 0 ? apart(start, std::max(start, stop)) : apart(std::min(start, stop), start);
  const uint64_t stride = step > 0 ? apart(0, step) : apart(step, 0);
  const uint64_t count = distance == 0 ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) refuse("a range has more than {} items", kMaxRange);
  std::vector<Value> items;
  items.reserve(count);
  // Numbers on the way may be too large, no item is.
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(
        Value::integer(static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step))));
  }
  return in.heap().list(std::move(items), Flavour::Range);
}

/// The dict that dict(...) or namespace(...) makes: of a mapping or of pairs, then of the named arguments.
Dict dict_of(Interp& in, std::string_view what, const Arguments& arguments) {
  Dict out;
  if (arguments.positional.size() > 1) refuse("{} takes at most 1 argument", what);
  if (!arguments.positional.empty() && arguments.positional[0].is(Kind::Dict)) {
    out = arguments.positional[0].as_dict();
  } else if (!arguments.positional.empty()) {
    for (const Value& pair : items_of(in.heap(), arguments.positional[0])) {
      const std::vector<Value> parts = items_of(in.heap(), pair);
      if (parts.size() != 2) refuse("{}: an element has length {}; 2 is required", what, parts.size());
      if (!parts[0].is_string()) in.heap().step(static_cast<int64_t>(out.size()));
      out.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) out.set(in.heap().string(name), value);
  return out;
}

Value dict(Interp& in, Function&, Arguments& arguments) {
  return in.heap().dict(dict_of(in, "dict", arguments));
}

Value name_space(Interp& in, Function&, Arguments& arguments) {
  return in.heap().name_space(dict_of(in, "namespace", arguments));
}

Value raise_exception(Interp& in, Function&, Arguments& arguments) {
  const Bound args("raise_exception", arguments, {"message"}, 1);
  throw Failure{str_of(in.heap(), *args[0]), 0, true};
}

/// One directive of strftime, from the % on; moves `format` past it.
std::string directive(std::string_view& format, const std::tm& time) {
  size_t at = 1;
  while (at < format.size() && std::string_view("-_0^#EO").find(format[at]) != std::string_view::npos) ++at;
  if (at >= format.size() || at > 4) refuse("strftime_now: a directive of the format cannot be read");
  const std::string one(format.substr(0, at + 1));
  format.remove_prefix(at + 1);
  if (one == "%f") return "000000";
  if (one == "%z" || one == "%Z") return "";  // Python's time without a zone
  char buffer[256];
  return {buffer, std::strftime(buffer, sizeof buffer, one.c_str(), &time)};
}

Value strftime_now(Interp& in, Function&, Arguments& arguments) {
  const Bound args("strftime_now", arguments, {"format"}, 1);
  const std::string pattern = args.string(0, "");
  const std::tm now = in.now();
  Text out(in.heap());
  for (std::string_view rest = pattern; !rest.empty();) {
    const size_t plain = std::min(rest.find('%'), rest.size());
    out.append(rest.substr(0, plain));
    rest.remove_prefix(plain);
    if (!rest.empty()) out.append(directive(rest, now));
  }
  return out.value();
}

Value call_joiner(Interp& in, Function& function, Arguments& arguments) {
  const Bound none("joiner", arguments);
  return function.state++ == 0 ? in.heap().string({}) : function.self;
}

Value make_joiner(Interp& in, Function&, Arguments& arguments) {
  const Bound args("joiner", arguments, {"sep"});
  Function made;
  made.name = "joiner";
  made.native = call_joiner;
  made.self = args[0] != nullptr ? *args[0] : in.heap().string(", ");
  return in.heap().function(std::move(made));
}

Value call_cycler(Interp&, Function&, Arguments&) { refuse("'Cycler' object is not callable"); }

Value make_cycler(Interp& in, Function&, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    refuse("at least one item has to be provided");
  Function made;
  made.name = "cycler";
  made.native = call_cycler;
  made.self = in.heap().list(arguments.positional);
  return in.heap().function(std::move(made));
}

/// next() and reset() of a cycler, which is their `self`.
Value cycler_next(Interp& in, Function& function, Arguments& arguments) {
  const Bound none("next", arguments);
  Function& cycler = function.self.as_function();
  const auto& items = cycler.self.as_list().items;
  in.heap().step();
  const Value out = items[static_cast<size_t>(cycler.state)];
  cycler.state = (cycler.state + 1) % static_cast<int64_t>(items.size());
  return out;
}

Value cycler_reset(Interp&, Function& function, Arguments& arguments) {
  const Bound none("reset", arguments);
  function.self.as_function().state = 0;
  return Value::none();
}

constexpr Row<Function::Native> kGlobals[] = {{"cycler", make_cycler},
                                              {"dict", dict},
                                              {"joiner", make_joiner},
                                              {"namespace", name_space},
                                              {"raise_exception", raise_exception},
                                              {"range", range},
                                              {"strftime_now", strftime_now}};

}  // namespace

Value find_global(Heap& heap, std::string_view name) {
  for (const auto& row : kGlobals) {
    if (row.name != name) continue;
    Function made;
    made.name = std::string(name);
    made.native = row.entry;
    return heap.function(std::move(made));
  }
  return {};
}

Value function_attribute(Interp& in, const Value& function, std::string_view name) {
  const Function& held = function.as_function();
  if (held.macro != nullptr && name == "name") return in.heap().string(held.name);
  if (held.native != call_cycler) return {};
  if (name == "current") return held.self.as_list().items[static_cast<size_t>(held.state)];
  if (name != "next" && name != "reset") return {};
  Function made;
  made.name = std::string(name);
  made.native = name == "next" ? cycler_next : cycler_reset;
  made.self = function;
  return in.heap().function(std::move(made));
}

}  // namespace sluice::text::jinja
