// Sets of characters by Unicode property: \p{Lu}, \p{Script=Greek}. Knows names as PCRE2 does.
#pragma once

#include <optional>
#include <string>

#include "text/grammar/expression.h"

namespace sluice::text::grammar {

/// The characters of a property; none: there is no such property. Found once a program for each name.
std::optional<CharacterSet> unicode_set(const std::string& name);

}  // namespace sluice::text::grammar
