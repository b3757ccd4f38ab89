// Which experts a step selected: counted from the ids it left behind.
#pragma once

#include "program/backend.h"

namespace sluice::profile {

/// Experts of a step, per layer that routes and on average over them; 0 where nothing routes.
struct ExpertCount {
  double distinct = 0;  ///< different experts that the rows selected together
  double least = 0;     ///< the same in the layer that has fewest
  double uniform = 0;   ///< what that would be on average, were every row's selection uniform
};

/// Counts after a step of `rows` rows, before the next one.
ExpertCount count_experts(program::Executable& executable, int64_t rows);

}  // namespace sluice::profile
