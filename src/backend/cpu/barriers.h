// Where the team must meet: before an op that touches what another worker may still be writing or reading.
#pragma once

#include <vector>

#include "backend/cpu/kernel.h"
#include "program/program.h"

namespace sluice::backend::cpu {

/// For every op, whether a barrier stands before it. Ops between two barriers touch disjoint memory, or are
/// both shared by rows and touch the same row of a tensor on the same worker only; after a Share::Together op
/// there is always one.
std::vector<bool> barriers_before(const program::Program& program, const program::MemoryPlan& plan,
                                  int64_t max_rows, int64_t max_outputs);

}  // namespace sluice::backend::cpu
