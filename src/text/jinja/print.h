// Values as text: Python's str() and repr(), and JSON as json.dumps writes it.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// The shortest digits that read back as the same number: "0.1", "1e-07", "2.0", "nan".
std::string float_repr(double value);

/// Appends str(value): what printing it in a template gives.
void print_str(Text& out, Heap& heap, const Value& value);
/// Appends repr(value): what it looks like inside a printed list.
void print_repr(Text& out, Heap& heap, const Value& value);
/// str(value) as a value; a string is itself.
Value to_string(Heap& heap, const Value& value);
/// str(value), for messages and counts.
std::string str_of(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< of one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Appends the JSON of a value. Throws Failure for what JSON cannot hold, undefined above all.
void print_json(Text& out, Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace sluice::text::jinja
