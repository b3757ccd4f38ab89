// How kernels of a graph follow each other (programmatic dependent launch) and leave their times; loads that
// suit it.
#pragma once

#include <cstdint>

#include "backend/cuda/host/device.h"

namespace sluice::backend::cuda {

/// Nanoseconds; the same for all SMs.
__device__ inline uint64_t device_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}
__device__ inline void raise(uint64_t* at, uint64_t value) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Programmatic dependent launch (PDL): how a kernel stands in the chain that a step is. Every kernel's first
/// parameter is its Timestamps (launch() gives it), and it makes its PdlLink before all else.
class PdlLink {
 public:
  /// Lets the next kernel start, unless that is to wait for this one's blocks to end (LaunchShape::late); it
  /// waits by itself for this one's results.
  __device__ explicit PdlLink(const Timestamps& timestamps) : timestamps_(timestamps) {
#if __CUDA_ARCH__ >= 900
    if (!timestamps.late) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  }

  /// Until the kernels before this one have ended and their results are seen. Weights may be read before. The
  /// first block to come through is the kernel's begin.
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (timestamps_.spans != nullptr && threadIdx.x == 0) raise(&span()->not_begin, ~device_ns());
  }

  /// The last warp to come here is the kernel's end.
  __device__ ~PdlLink() {
    if (timestamps_.spans != nullptr && threadIdx.x % 32 == 0) raise(&span()->end, device_ns());
  }
  PdlLink(const PdlLink&) = delete;
  PdlLink& operator=(const PdlLink&) = delete;

 private:
  __device__ Span* span() const {
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return timestamps_.spans + sm % Timestamps::kSpans;
  }
  const Timestamps& timestamps_;
};

/// 16 bytes of a weight: read once a step, so that it need not stay in L1.
__device__ inline uint4 load_weight(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
__device__ inline uint2 load_weight(const uint2* at) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
  return v;
}

/// Smaller pieces of a weight's planes.
__device__ inline uint32_t load_weight(const uint32_t* at) {
  uint32_t v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
__device__ inline uint32_t load_weight(const uint16_t* at) {
  uint32_t v;  // not 16 bits, whose widening would wait for the load where it stands
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
__device__ inline uint32_t load_weight(const uint8_t* at) {
  uint32_t v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}

/// What an earlier kernel of the step has made, asked for here and not where it is used first.
__device__ inline float load_result(const float* at) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(at));
  return v;
}
__device__ inline int load_result(const int32_t* at) {
  int v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}

/// Asks for a line of a weight ahead of its use.
__device__ inline void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/// Asks for the lines of `bytes` from `from` on, the block's threads together.
__device__ inline void prefetch_range(const uint8_t* from, int64_t bytes) {
  constexpr int kLine = 128;
  for (int64_t at = threadIdx.x * kLine; at < bytes; at += blockDim.x * kLine) prefetch(from + at);
}

}  // namespace sluice::backend::cuda
