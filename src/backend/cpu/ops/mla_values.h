// Where the expansion of mla_heads ends in mla_values.
#pragma once

#include "backend/cpu/kernel.h"

namespace sluice::backend::cpu {

/// Expands mla_heads so that its end is the one op that may choose its way row by row, and that keeps queries
/// and results in latent space for some rows at a time; false: another op, or weights that this one does not
/// read.
bool expand_to_values(program::Builder& b, const program::Op& op);

}  // namespace sluice::backend::cpu
