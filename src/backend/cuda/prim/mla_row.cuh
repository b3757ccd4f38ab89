// A row of the cache of latent attention (512 + 64 columns) in shared memory, by how it holds numbers: what
// kernels that work on single rows read and write. The bytes are the cache's own (quant/cache_row.h).
#pragma once

#include "backend/cuda/prim/cache_row.cuh"

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

}  // namespace sluice::backend::cuda
