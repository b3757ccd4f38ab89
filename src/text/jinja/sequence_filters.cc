// Filters on lists, dicts and everything else that can be walked.
#include <algorithm>

#include "text/jinja/arguments.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/tables.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

Value length(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("length", arguments);
  const auto count = length_of(in.heap(), value);
  if (!count) refuse("object of type '{}' has no len()", type_name(value));
  return Value::integer(static_cast<int64_t>(*count));
}

Value list(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("list", arguments);
  return in.heap().list(items_of(in.heap(), value));
}

Value first(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("first", arguments);
  if (value.is(Kind::List)) {  // takes one item of a generator and leaves the rest
    List& held = value.as_list();
    const size_t at = held.flavour == Flavour::Generator ? held.taken++ : 0;
    if (at < held.items.size()) return held.items[at];
  } else {
    std::vector<Value> items = items_of(in.heap(), value);
    if (!items.empty()) return items[0];
  }
  return in.heap().undefined("no first item, sequence was empty");
}

Value last(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("last", arguments);
  if (value.is(Kind::List) && value.as_list().flavour == Flavour::Generator)
    refuse("'generator' object is not reversible");
  const std::vector<Value> items = items_of(in.heap(), value);
  return items.empty() ? in.heap().undefined("no last item, sequence was empty") : items.back();
}

Value reverse(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("reverse", arguments);
  if (value.is_string()) return slice(in.heap(), value, Value::none(), Value::none(), Value::integer(-1));
  std::vector<Value> items = items_of(in.heap(), value);
  std::reverse(items.begin(), items.end());
  return in.heap().list(std::move(items), Flavour::Generator);
}

Value join(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("join", arguments, {"d", "attribute"});
  const std::string separator = args[0] != nullptr ? str_of(in.heap(), *args[0]) : "";
  Text out(in.heap());
  bool is_first = true;
  for (const Value& item : items_of(in.heap(), value)) {
    if (!is_first) out.append(separator);
    is_first = false;
    print_str(out, in.heap(), args.given(1) ? AttributePath(in, *args[1]).of(in, item) : item);
  }
  return out.value();
}

Value sort(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> items = keyed(in, items_of(in.heap(), value), args.value(2), args.flag(1, false));
  sort_by_key(in.heap(), items, args.flag(0, false));
  return in.heap().list(values_of(std::move(items)));
}

Value dictsort(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = args.string(1, "key");
  if (by != "key" && by != "value") refuse("dictsort: 'by' must be 'key' or 'value'");
  if (!value.is(Kind::Dict)) refuse("dictsort needs a mapping, not {}", type_name(value));
  std::vector<Keyed> items;
  for (const auto& [key, entry] : value.as_dict().entries()) {
    const Value& sorted_by = by == "key" ? key : entry;
    items.push_back(
        {args.flag(0, false) ? sorted_by : lower_case(in.heap(), sorted_by), in.heap().tuple({key, entry})});
  }
  sort_by_key(in.heap(), items, args.flag(2, false));
  return in.heap().list(values_of(std::move(items)));
}

Value unique(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("unique", arguments, {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (Keyed& item : keyed(in, items_of(in.heap(), value), args.value(1), args.flag(0, false))) {
    if (!item.key.is_string()) in.heap().step(static_cast<int64_t>(seen.size()));
    if (seen.find(item.key) != nullptr) continue;
    seen.set(item.key, Value::none());
    out.push_back(std::move(item.value));
  }
  return in.heap().list(std::move(out), Flavour::Generator);
}

/// The item whose key comes first in the order `op`.
Value extreme(Interp& in, const Value& value, Arguments& arguments, CompareOp op) {
  const Bound args(op == CompareOp::Less ? "min" : "max", arguments, {"case_sensitive", "attribute"});
  std::vector<Keyed> items = keyed(in, items_of(in.heap(), value), args.value(1), args.flag(0, false));
  if (items.empty()) return in.heap().undefined("no aggregated item, sequence was empty");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    if (compare(in.heap(), op, items[i].key, items[best].key)) best = i;
  }
  return items[best].value;
}

Value min(Interp& in, const Value& value, Arguments& arguments) {
  return extreme(in, value, arguments, CompareOp::Less);
}
Value max(Interp& in, const Value& value, Arguments& arguments) {
  return extreme(in, value, arguments, CompareOp::Greater);
}

Value sum(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("sum", arguments, {"attribute", "start"});
  Value total = args[1] != nullptr ? *args[1] : Value::integer(0);
  if (total.is_string()) refuse("sum() can't sum strings");
  for (const Value& item : items_of(in.heap(), value))
    total = arithmetic(in.heap(), BinaryOp::Add, total,
                       args.given(0) ? AttributePath(in, *args[0]).of(in, item) : item);
  return total;
}

Value pairs(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("items", arguments);
  std::vector<Value> out;
  if (!value.is_undefined()) {
    if (!value.is(Kind::Dict)) refuse("can only get item pairs from a mapping");
    for (const auto& [key, entry] : value.as_dict().entries()) out.push_back(in.heap().tuple({key, entry}));
  }
  return in.heap().list(std::move(out), Flavour::Generator);
}

void fill_up(Heap& heap, std::vector<Value>& row, size_t size, const Value& fill) {
  heap.check_room(size, sizeof(Value));
  if (!fill.is_none() && row.size() < size) row.resize(size, fill);
}

Value batch(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = args.integer(0, 0);
  std::vector<Value> rows, row;
  for (Value& item : items_of(in.heap(), value)) {
    if (static_cast<int64_t>(row.size()) == size) {
      rows.push_back(in.heap().list(std::move(row)));
      row.clear();
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    fill_up(in.heap(), row, static_cast<size_t>(std::max<int64_t>(size, 0)), args.value(1));
    rows.push_back(in.heap().list(std::move(row)));
  }
  return in.heap().list(std::move(rows), Flavour::Generator);
}

Value slices(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t count = args.integer(0, 0);
  if (count == 0) refuse("division by zero");
  const std::vector<Value> all = items_of(in.heap(), value);
  in.heap().check_room(static_cast<size_t>(std::max<int64_t>(count, 0)), sizeof(Value) + sizeof(List));
  std::vector<Value> rows;
  auto at = all.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto size = static_cast<int64_t>(all.size());
    const bool longer = i < size % count;
    const auto end = at + size / count + (longer ? 1 : 0);
    std::vector<Value> row(at, end);
    at = end;
    if (!longer && args.given(1)) row.push_back(*args[1]);
    rows.push_back(in.heap().list(std::move(row)));
  }
  return in.heap().list(std::move(rows), Flavour::Generator);
}

Value groupby(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(in, *args[0]);
  const bool case_sensitive = args.flag(2, false);
  std::vector<Keyed> sorted;
  for (Value& item : items_of(in.heap(), value)) {
    const Value key = path.of(in, item, args[1]);
    sorted.push_back({case_sensitive ? key : lower_case(in.heap(), key), std::move(item)});
  }
  sort_by_key(in.heap(), sorted, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    const Value key = path.of(in, sorted[i].value, args[1]);  // in its own case
    std::vector<Value> members;
    const size_t start = i;
    for (; i < sorted.size() && equal(in.heap(), sorted[i].key, sorted[start].key); ++i)
      members.push_back(sorted[i].value);
    groups.push_back(in.heap().list({key, in.heap().list(std::move(members))}, Flavour::Group));
  }
  return in.heap().list(std::move(groups));
}

Value attr(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("attr", arguments, {"name"}, 1);
  const std::string name = args.string(0, "");
  if (value.is(Kind::Dict) && find_method(value, name) == nullptr)  // attributes only, no items
    return in.heap().undefined("'dict object' has no attribute '" + name.substr(0, 80) + "'");
  return get_attribute(in, value, name);
}

constexpr Row<Filter> kSequenceFilters[] = {
    {"attr", attr},       {"batch", batch}, {"count", length}, {"dictsort", dictsort}, {"first", first},
    {"groupby", groupby}, {"items", pairs}, {"join", join},    {"last", last},         {"length", length},
    {"list", list},       {"max", max},     {"min", min},      {"reverse", reverse},   {"slice", slices},
    {"sort", sort},       {"sum", sum},     {"unique", unique}};

}  // namespace

std::span<const Row<Filter>> sequence_filters() { return kSequenceFilters; }

}  // namespace sluice::text::jinja
