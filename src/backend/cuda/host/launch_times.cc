#include "backend/cuda/host/launch_times.h"

#include <algorithm>

#include "backend/cuda/host/cuda_check.h"
#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

/// Of all SMs; false: no block ran.
bool join(const Span* spans, LaunchTime& time) {
  uint64_t not_begin = 0, end = 0;
  for (int i = 0; i < Timestamps::kSpans; ++i) {
    not_begin = std::max(not_begin, spans[i].not_begin);
    end = std::max(end, spans[i].end);
  }
  time = {static_cast<int64_t>(~not_begin), static_cast<int64_t>(end)};
  return not_begin != 0;
}

}  // namespace

LaunchTimes::LaunchTimes(size_t launches) : launches_(launches), times_(launches) {
  allocate_pinned(pinned_, bytes());
  allocate_device(device_, bytes());
  check(cudaMemset(device_, 0, static_cast<size_t>(bytes())));
  check(cudaDeviceSynchronize());  // steps' streams do not wait for this one
}
LaunchTimes::~LaunchTimes() {
  cudaFree(device_);
  cudaFreeHost(pinned_);
}

Timestamps LaunchTimes::next() {
  CHECK(used_ < launches_, "{} launches", launches_);
  return {device_ + used_++ * Timestamps::kSpans};
}

const std::vector<LaunchTime>& LaunchTimes::read(cudaStream_t stream) {
  const auto size = static_cast<size_t>(bytes());
  check(cudaMemcpyAsync(pinned_, device_, size, cudaMemcpyDeviceToHost, stream));
  check(cudaMemsetAsync(device_, 0, size, stream));
  check(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < launches_; ++i) {
    if (join(pinned_ + i * Timestamps::kSpans, times_[i])) continue;
    const int64_t before = i == 0 ? 0 : times_[i - 1].end_ns;
    times_[i] = {before, before};
  }
  return times_;
}

}  // namespace sluice::backend::cuda
