// The names that the language brings along: filters, tests, methods and functions. One table each; the
// entries stand in the file that implements them.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// value|filter(arguments)
using Filter = Value (*)(Interp& in, const Value& value, Arguments& arguments);
/// value is test(arguments)
using Test = bool (*)(Interp& in, const Value& value, Arguments& arguments);
/// self.method(arguments), self being of the table's kind.
using Method = Value (*)(Interp& in, const Value& self, Arguments& arguments);

template <typename Entry>
struct Row {
  std::string_view name;
  Entry entry;
};

/// Null when there is none of that name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
Method find_method(const Value& self, std::string_view name);

// The parts of the tables.
std::span<const Row<Filter>> text_filters();
std::span<const Row<Filter>> number_filters();
std::span<const Row<Filter>> sequence_filters();
std::span<const Row<Filter>> selection_filters();
std::span<const Row<Method>> string_methods();
std::span<const Row<Method>> list_methods();
std::span<const Row<Method>> dict_methods();

/// A function that every template can call (range, namespace, ...); undefined when there is none of that
/// name.
Value find_global(Heap& heap, std::string_view name);
/// An attribute of a function value: next, current and reset of a cycler, name of a macro.
Value function_attribute(Interp& in, const Value& function, std::string_view name);

}  // namespace sluice::text::jinja
