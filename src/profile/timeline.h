// A step's clock readings taken apart: what every op added to the step's time, and what lies between ops.
#pragma once

#include <cstdint>
#include <vector>

#include "program/backend.h"

namespace sluice::profile {

/// Nanoseconds of one step. ops and gaps together are the time from the step's begin to its end.
struct StepParts {
  /// [ops] What an op added: from its predecessor's end (the last worker's), or its own first begin if that
  /// is later, to its own end.
  std::vector<int64_t> op_ns;
  /// [ops + 1] Before each op: from the moment when all workers had ended its predecessor to the moment when
  /// the first of them began it; behind the last op: to the step's end.
  std::vector<int64_t> gap_ns;
  /// What an average worker waited at barriers for others, gaps not counted.
  int64_t wait_ns = 0;
};

StepParts take_apart(const program::StepTimes& times, size_t ops);

}  // namespace sluice::profile
