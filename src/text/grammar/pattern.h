// Regular expressions as JSON Schema's `pattern` has them (ECMA-262), as far as they are regular: no back
// references, no lookbehind, lookaheads outside of repeated groups only.
#pragma once

#include <string_view>

#include "text/grammar/budget.h"
#include "text/grammar/expression.h"

namespace sluice::text::grammar {

/// What whole texts look like that the pattern is found in. Throws Error that says what is not supported.
/// \d, \w and \s are ASCII's (\s has ECMA's other spaces too).
ExpressionPtr pattern_expression(std::string_view pattern, Budget& budget);

/// What whole texts of a JSON Schema `format` look like; null: the format is not known.
ExpressionPtr format_expression(std::string_view format, Budget& budget);

}  // namespace sluice::text::grammar
