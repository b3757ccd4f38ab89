// What a GPU and a CPU could do at most with a model that they share (program/offload.h): from the Program's
// own costs and what memories, arithmetic and the link between them reach. Nothing is measured here.
#pragma once

#include <cstdint>
#include <string>

#include "program/backend.h"

namespace sluice::cli {

struct SharedPeaks {
  program::Peaks gpu, cpu;
  double link_bytes_per_second =
      0;  ///< from the CPU's memory to the GPU's; 0: not known, nothing is streamed
};

struct SharedLimit {
  double seconds = 0;                                         ///< of a step
  double gpu_seconds = 0, cpu_seconds = 0, link_seconds = 0;  ///< that each is at work
  bool streamed = false;  ///< experts go to the GPU, layer by layer: that is sooner than the CPU's computing
};

/// A step of a program that offload_experts() cut. hit_rate: of the selected experts that lie in the CPU's
/// memory, the share of which the GPU has a copy. The CPU computes the others while the GPU computes these
/// and the shared ones of the same layer; or all come to the GPU, beside its computing.
SharedLimit shared_limit(const program::Program& cut, const program::StepShape& shape,
                         const SharedPeaks& peaks, double hit_rate);

/// "At most 123 tokens/s of one sequence, 4567 of a prompt of 512: the GPU's memory reads 360.0 GB/s, the
/// CPU's 50.0, and 24.0 GB/s go from one to the other".
std::string shared_text(const program::Program& cut, const SharedPeaks& peaks);

/// Of a model's routed experts, the share that has room in so much of a GPU's memory beside everything else:
/// weights, a cache of `context` tokens and what a program takes besides. Negative: not even the rest has.
double share_with_room(const program::Program& program, int64_t context, int64_t gpu_bytes);

}  // namespace sluice::cli
