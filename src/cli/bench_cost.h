// What a benchmark's test moves and computes, and how long hardware needs for it at least.
#pragma once

#include <optional>

#include "cli/bench_record.h"
#include "cli/shared_limit.h"
#include "program/backend.h"

namespace sluice::cli {

/// Bytes and FLOPs of a test: prompt steps row by row of the batch, decode steps at the mean context (costs
/// are linear in it).
program::Cost cost_of(const program::Program& program, const BenchTest& test, int64_t max_rows,
                      const profile::ExpertCount& experts);

/// Bytes that a step reads, on average.
double step_bytes(const program::Program& program, const BenchTest& test, int64_t max_rows);

/// Peaks of a GPU, a CPU and the way between them, measured; nothing for a backend that is no such pair.
std::optional<SharedPeaks> measured_peaks(program::Backend& backend);

/// The least time of a test over such a pair.
double shared_seconds(const program::Program& cut, const BenchTest& test, int64_t max_rows,
                      const profile::ExpertCount& experts, const SharedPeaks& peaks);

}  // namespace sluice::cli
