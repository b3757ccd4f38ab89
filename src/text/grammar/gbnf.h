// GBNF grammars (the notation of llama.cpp) to rules: literals, [classes], ., groups, | * + ? {m,n},
// comments.
#pragma once

#include <string_view>

#include "text/grammar/grammar.h"

namespace sluice::text::grammar {

/// Adds the rules of a grammar; returns that of `root`. Throws Error that names the line.
uint32_t add_gbnf(std::string_view grammar, GrammarBuilder& builder);

}  // namespace sluice::text::grammar
