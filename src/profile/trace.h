// Steps as a trace that Perfetto and chrome://tracing open: workers are tracks, ops are slices.
#pragma once

#include <span>
#include <string>

#include "program/backend.h"

namespace sluice::profile {

/// Format: "Trace Event Format", complete events (ph X), times in microseconds from the first step's begin.
std::string trace_json(const program::Program& program, std::span<const program::BoundKernel> kernels,
                       std::span<const program::StepTimes> steps);

}  // namespace sluice::profile
