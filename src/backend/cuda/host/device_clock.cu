#include "backend/cuda/host/device_clock.h"

#include <limits>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/prim/sync.cuh"
#include "base/clock.h"

namespace sluice::backend::cuda {
namespace {

constexpr int kQuestions = 32;

__global__ void tell_time(uint64_t* to) { *to = device_ns(); }

}  // namespace

int64_t device_clock_behind(cudaStream_t stream) {
  uint64_t* told = nullptr;
  allocate_pinned(told, sizeof *told);
  int64_t quickest = std::numeric_limits<int64_t>::max(), behind = 0;
  for (int i = 0; i < kQuestions; ++i) {
    const int64_t asked = now_ns();
    tell_time<<<1, 1, 0, stream>>>(told);
    check(cudaStreamSynchronize(stream));
    const int64_t answered = now_ns();
    if (answered - asked >= quickest) continue;
    quickest = answered - asked;
    behind = asked + quickest / 2 - static_cast<int64_t>(*told);
  }
  cudaFreeHost(told);
  return behind;
}

}  // namespace sluice::backend::cuda
