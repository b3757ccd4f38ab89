// A row of the cache of latent attention (512 + 64 columns) in shared memory, by how it holds numbers: what
// kernels that work on single rows read and write. The bytes are the cache's own (quant/cache_row.h).
#pragma once

#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

/// All columns in binary16.
struct HalfRow {
  static constexpr bool kCoded = false;
  static constexpr int kBytes = 1152, kExact = 1024;  ///< of a row; where the last 64 columns begin

  /// Columns 2 p and 2 p + 1 of the first 512.
  static __device__ __forceinline__ float2 latent(const char* row, int p) {
    return __half22float2(reinterpret_cast<const __half2*>(row)[p]);
  }
  /// Puts one of the first 512; a warp's lanes put neighbours.
  static __device__ __forceinline__ void put_latent(char* row, int c, float v) {
    reinterpret_cast<__half*>(row)[c] = __float2half_rn(v);
  }
};

/// The first 512 columns in eight bits.
struct CodedRow {
  static constexpr bool kCoded = true;
  static constexpr int kBytes = 672, kExact = 512, kScales = 640;

  static __device__ __forceinline__ float2 latent(const char* row, int p) {
    const char2 codes = reinterpret_cast<const char2*>(row)[p];
    const float scale = __half2float(reinterpret_cast<const __half*>(row + kScales)[p / (kCacheRun / 2)]);
    return {static_cast<float>(codes.x) * scale, static_cast<float>(codes.y) * scale};
  }
  static __device__ __forceinline__ void put_latent(char* row, int c, float v) {
    const __half scale = scale_of(lane_max(fabsf(v)));
    row[c] = static_cast<char>(code_of(v, scale));
    if (c % kCacheRun == 0) reinterpret_cast<__half*>(row + kScales)[c / kCacheRun] = scale;
  }
};

/// Columns 512 + 2 p and the next one.
template <typename Row>
__device__ __forceinline__ float2 exact_pair(const char* row, int p) {
  return __half22float2(reinterpret_cast<const __half2*>(row + Row::kExact)[p]);
}
/// Puts column 512 + c.
template <typename Row>
__device__ __forceinline__ void put_exact(char* row, int c, float v) {
  reinterpret_cast<__half*>(row + Row::kExact)[c] = __float2half_rn(v);
}

/// Copies a row in shared memory. A thread block calls it.
template <typename Row>
__device__ inline void copy_row(char* to, const char* from) {
  if (threadIdx.x < Row::kBytes / 16)
    reinterpret_cast<uint4*>(to)[threadIdx.x] = reinterpret_cast<const uint4*>(from)[threadIdx.x];
}

/// Copies `count` neighbouring rows of the cache to shared memory, asynchronously (wait_for_copies). A block
/// of kThreads calls it.
template <typename Row, int kThreads>
__device__ inline void fetch_rows(char* to, const char* from, int count) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) * 16; at < count * Row::kBytes; at += kThreads * 16)
    copy_async(to + at, from + at);
}

/// Scores of kRows rows in shared memory, to there; -infinity from row `count` on. Each of the block's kWarps
/// warps takes every kWarps-th row, its rows side by side.
template <typename Row, int kRows, int kWarps>
__device__ inline void score_rows(const char* rows, const float* query, int count, float scale, float* to) {
  constexpr int kEach = kRows / kWarps, kPairs = 64;  // kPairs: columns of a warp's lanes
  constexpr int kLatent = 512, kColumns = kLatent + 64;
  static_assert(kRows % kWarps == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float scores[kEach] = {};
#pragma unroll
  for (int i = 0; i < kColumns / kPairs; ++i) {
    const float2 q = reinterpret_cast<const float2*>(query)[i * 32 + lane];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const char* const row = rows + (j * kWarps + warp) * Row::kBytes;
      const float2 key = i < kLatent / kPairs ? Row::latent(row, i * 32 + lane) : exact_pair<Row>(row, lane);
      scores[j] += key.x * q.x + key.y * q.y;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (float& score : scores) score += __shfl_xor_sync(kWholeWarp, score, step);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int row = j * kWarps + warp;
    if (lane == 0) to[row] = row < count ? scores[j] * scale : -INFINITY;
  }
}

}  // namespace sluice::backend::cuda
