// Formatting and padding of text, shared by operators, filters and methods.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

struct Arguments;
class Interp;

/// Python's `pattern % values`: values is a tuple, a dict for %(name)s, or a single value.
Value format_percent(Heap& heap, std::string_view pattern, const Value& values);

/// Python's pattern.format(...).
Value format_braces(Interp& in, std::string_view pattern, const Arguments& arguments);

enum class Align : char { Left, Right, Center };

/// The text with `fill` around it, `width` characters wide at least.
Value padded(Heap& heap, std::string_view text, int64_t width, char32_t fill, Align align);

/// Python's text.replace(old, fresh, count); a negative count means all.
Value replaced(Heap& heap, std::string_view text, std::string_view old, std::string_view fresh,
               int64_t count);

}  // namespace sluice::text::jinja
