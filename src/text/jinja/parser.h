// Tokens -> tree.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/symbols.h"

namespace sluice::text::jinja {

/// Throws Failure with the line at which the template stops making sense, or is nested too deeply.
Body parse(std::string_view source, Symbols& symbols);

}  // namespace sluice::text::jinja
