// Where ops of a legal Program are put together to mla_values.
#pragma once

#include "backend/cpu/kernel.h"

namespace sluice::backend::cpu {

/// The same Program, every rope of queries, k_b product, mla_attend and v_b product in turn as the one op
/// that may choose its way row by row, and that keeps queries and results in latent space for some rows at a
/// time.
program::Program with_mla_values(const program::Program& program);

/// Rows of one sequence from which on the op may attend to expanded keys; 0 where it never does.
int64_t expanded_from(const program::Program& program, const program::MlaValues& op, Isa isa);

}  // namespace sluice::backend::cpu
