// Where the kernels of a captured step leave their times (prim/sync.cuh), and what the host makes of them:
// when each launch began and ended, in nanoseconds of the device's clock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/host/device.h"

namespace sluice::backend::cuda {

/// Nanoseconds from the first block that could begin to the last warp's end.
struct LaunchTime {
  int64_t begin_ns = 0, end_ns = 0;
};

class LaunchTimes {
 public:
  /// Room for so many launches.
  explicit LaunchTimes(size_t launches);
  ~LaunchTimes();
  LaunchTimes(const LaunchTimes&) = delete;
  LaunchTimes& operator=(const LaunchTimes&) = delete;

  /// The place of the next launch that is captured.
  Timestamps next();
  /// The launches' times in the step that has just run, in the order of their capture; makes the places ready
  /// for the next step. A launch of which no block ran has the end of the one before it.
  const std::vector<LaunchTime>& read(cudaStream_t stream);

 private:
  int64_t bytes() const { return static_cast<int64_t>(launches_ * Timestamps::kSpans * sizeof(Span)); }

  size_t launches_ = 0, used_ = 0;
  Span *device_ = nullptr, *pinned_ = nullptr;  ///< [launches][kSpans]
  std::vector<LaunchTime> times_;
};

}  // namespace sluice::backend::cuda
