#include "backend/cuda/host/peaks.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <memory>

#include "backend/cuda/host/architecture.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/stream.h"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kPasses = 5;

/// Reads `count` pieces of 16 bytes, all blocks together, eight in flight a thread.
__global__ void __launch_bounds__(kThreads) read_all(const uint4* data, int64_t count, uint32_t* never) {
  constexpr int kInFlight = 8;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t all = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += stride * kInFlight) {
    uint4 v[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k)
      v[k] = i + k * stride < count ? load_weight(data + i + k * stride) : uint4{};
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) all |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (all == 0x12345678u) *never = all;
}

/// Products of 16 x 16 by 16 x 8 in registers (mma.sync), `rounds` times four independent ones a warp.
template <bool kBf16>
__global__ void __launch_bounds__(kThreads) multiply_all(int rounds, uint32_t* never) {
  constexpr int kChains = 4;
  uint32_t a[4], b[2];
  for (uint32_t& v : a) v = threadIdx.x * 2654435761u >> 2 & 0x3fff3fffu;
  for (uint32_t& v : b) v = threadIdx.x * 40503u & 0x3fff3fffu;
  float sums[kChains][4] = {};
  int whole[kChains][4] = {};
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kBf16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(sums[c][0]), "+f"(sums[c][1]), "+f"(sums[c][2]), "+f"(sums[c][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      } else {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+r"(whole[c][0]), "+r"(whole[c][1]), "+r"(whole[c][2]), "+r"(whole[c][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      }
    }
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += sums[c][0] + static_cast<float>(whole[c][1]);
  if (sum == 0.12345f) *never = 1;
}

/// The shortest of some runs, each with a stream, in seconds.
template <typename F>
double best_seconds(F run) {
  const Stream stream;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float best = 1e30f;
  for (int pass = 0; pass <= kPasses; ++pass) {  // the first one warms up
    check(cudaEventRecord(begin, stream));
    run(stream);
    check(cudaGetLastError());
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (pass > 0) best = std::min(best, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return static_cast<double>(best) / 1e3;
}

unsigned sm_count() { return static_cast<unsigned>(current_sm_count()); }

template <bool kBf16>
double multiply_rate() {
  const Buffer never(4);
  constexpr int kRounds = 4096;
  const unsigned blocks = 2 * sm_count();
  const double seconds = best_seconds([&](cudaStream_t stream) {
    multiply_all<kBf16><<<blocks, kThreads, 0, stream>>>(kRounds, reinterpret_cast<uint32_t*>(never.data()));
  });
  const double operations = 2.0 * 16 * 8 * (kBf16 ? 16 : 32) * 4;  // a warp and round
  return blocks * (kThreads / 32.0) * kRounds * operations / seconds;
}

}  // namespace

double measure_read_bandwidth() {
  size_t available = 0, all = 0;
  check(cudaMemGetInfo(&available, &all));
  const auto bytes = static_cast<int64_t>(std::min<size_t>(size_t{2} << 30, available / 2)) / 4096 * 4096;
  const Buffer data(bytes), never(4);
  check(cudaMemset(data.data(), 1, static_cast<size_t>(bytes)));
  check(cudaDeviceSynchronize());
  double best = 0;
  for (const unsigned blocks_each : {1u, 2u, 4u}) {
    const double seconds = best_seconds([&](cudaStream_t stream) {
      read_all<<<blocks_each * sm_count(), kThreads, 0, stream>>>(
          reinterpret_cast<const uint4*>(data.data()), bytes / 16, reinterpret_cast<uint32_t*>(never.data()));
    });
    best = std::max(best, static_cast<double>(bytes) / seconds);
  }
  return best;
}

double measure_link_bandwidth() {
  constexpr int64_t kBytes = 256 << 20;
  const Buffer data(kBytes);
  char* pinned = nullptr;
  allocate_pinned(pinned, kBytes);
  const std::unique_ptr<char, cudaError_t (*)(void*)> owner(pinned,
                                                            [](void* at) { return cudaFreeHost(at); });
  const double seconds = best_seconds([&](cudaStream_t stream) {
    check(cudaMemcpyAsync(data.data(), pinned, kBytes, cudaMemcpyHostToDevice, stream));
  });
  return static_cast<double>(kBytes) / seconds;
}

const program::Peaks& device_peaks() {
  static PerDevice<program::Peaks> peaks;
  return peaks.of_current([] {
    program::Peaks found;
    found.bytes_per_second = measure_read_bandwidth();
    found.read_how = "16-byte loads, eight in flight a thread";
    found.rates = {{"bf16 mma.sync", multiply_rate<true>()}, {"int8 mma.sync", multiply_rate<false>()}};
    found.flops = found.rates[0].per_second;
    return found;
  });
}

}  // namespace sluice::backend::cuda
