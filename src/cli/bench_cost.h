// What a benchmark's test moves and computes, and how long hardware needs for it at least.
#pragma once

#include <optional>
#include <string>

#include "cli/bench_record.h"
#include "cli/shared_limit.h"
#include "program/backend.h"
#include "program/expert_slots.h"

namespace sluice::cli {

/// Bytes and FLOPs of a test: prompt steps row by row of the batch, decode steps at the mean context (costs
/// are linear in it).
program::Cost cost_of(const program::Program& program, const BenchTest& test, int64_t max_rows,
                      const profile::ExpertCount& experts);

/// Bytes that a step reads, on average.
double step_bytes(const program::Program& program, const BenchTest& test, int64_t max_rows);

/// Peaks of a GPU, a CPU and the way between them, measured; nothing for a backend that is no such pair.
std::optional<SharedPeaks> measured_peaks(program::Backend& backend);

/// The least time of a test over such a pair, with copies of experts hit as they were. uncut: what the
/// executable's program was cut from.
double shared_seconds(const program::Executable& executable, const program::Program& uncut,
                      const BenchTest& test, int64_t max_rows, const profile::ExpertCount& experts,
                      const SharedPeaks& peaks, const program::ExpertUse& use);

/// "the GPU had copies of 74.2% of the experts that were selected in 35 layers: of 1024, and 12 were
/// brought".
std::string hits_text(const program::ExpertUse& use);

/// Experts of which a GPU had copies (program/expert_slots.h), while something was measured.
class ExpertHits {
 public:
  /// From now on.
  explicit ExpertHits(const program::Executable& executable);
  /// Until now; of layers 0 where there are no copies.
  program::ExpertUse use() const;

 private:
  const program::ExpertCounts* counts_;
  program::ExpertUse before_;
};

}  // namespace sluice::cli
