// A step's clock readings taken apart: what every op added to the step's time, and what lies between ops.
#pragma once

#include <cstdint>
#include <vector>

#include "program/backend.h"

namespace sluice::profile {

/// Nanoseconds of one step. ops and gaps together are the time from the step's begin to its end.
struct StepParts {
  /// [ops] What an op added: the part of its last worker, from that worker's begin, or from the moment when
  /// all had ended the predecessor if that is later, to its end.
  std::vector<int64_t> op_ns;
  /// [ops + 1] Before each op: from the moment when all had ended its predecessor to the moment when the
  /// worker that was to end last began (barriers, workers that wake late); behind the last op: to the step's
  /// end.
  std::vector<int64_t> gap_ns;
  /// What an average worker waited for others, beyond the gaps.
  int64_t wait_ns = 0;
};

StepParts take_apart(const program::StepTimes& times, size_t ops);

}  // namespace sluice::profile
