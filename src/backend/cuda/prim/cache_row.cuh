// Rows of the cache as kernels write and read them: binary16, or columns in eight bits before columns in
// binary16 (quant/cache_row.h). A row of binary16 has no column in eight bits, so that both are one case.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/host/device.h"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

/// Columns under one scale.
inline constexpr int kCacheRun = 32;

__device__ __forceinline__ __half* exact_columns(const Cache& cache, char* row) {
  return reinterpret_cast<__half*>(row + cache.exact_at);
}

/// The scale of a run whose largest magnitude this is, and a number's code under it.
__device__ __forceinline__ __half scale_of(float largest) {
  return __float2half_ru(__fdiv_rn(largest, 127.0f));
}
__device__ __forceinline__ int code_of(float v, __half scale) {
  const float step = __half2float(scale);
  return step > 0 ? __float2int_rn(v * __fdiv_rn(1.0f, step)) : 0;
}

/// A number of a column in binary16.
__device__ __forceinline__ void put_exact(const Cache& cache, char* row, int c, float v) {
  exact_columns(cache, row)[c - cache.coded] = __float2half_rn(v);
}

/// A number of any column. Where columns are in eight bits, a warp's lanes put those of a whole run.
__device__ __forceinline__ void put_number(const Cache& cache, char* row, int c, float v) {
  if (c >= cache.coded) return put_exact(cache, row, c, v);
  const __half scale = scale_of(lane_max(fabsf(v)));
  row[c] = static_cast<char>(code_of(v, scale));
  if (c % kCacheRun == 0) *reinterpret_cast<__half*>(row + cache.scales_at + c / kCacheRun * 2) = scale;
}

/// What the cache gives back of a number, as a kernel that decodes it has it. In eight bits a warp's lanes
/// ask for a whole run.
template <bool kCoded>
__device__ __forceinline__ __half as_cached(float v) {
  if (!kCoded) return __float2half_rn(v);
  const __half scale = scale_of(lane_max(fabsf(v)));
  return __hmul(__int2half_rn(code_of(v, scale)), scale);
}

__device__ __forceinline__ float half_at(const char* at) {
  return __half2float(__ushort_as_half(__ldcg(reinterpret_cast<const unsigned short*>(at))));
}
__device__ __forceinline__ float number_at(const Cache& cache, const char* row, int c) {
  if (c >= cache.coded) return half_at(row + cache.exact_at + (c - cache.coded) * 2);
  return static_cast<float>(__ldcg(reinterpret_cast<const signed char*>(row + c))) *
         half_at(row + cache.scales_at + c / kCacheRun * 2);
}

/// Four codes times their scale, as halves: a byte + 128 in the low bits of 1024 is that half + 1024.
__device__ __forceinline__ uint2 halves_of_codes(uint32_t codes, __half2 scale) {
  const uint32_t shifted = codes ^ 0x80808080u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1024 + 128
  const uint32_t pair[2] = {__byte_perm(shifted, 0x64646464u, 0x4140),
                            __byte_perm(shifted, 0x64646464u, 0x4342)};
  uint32_t out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half2 product = __hmul2(__hsub2(*reinterpret_cast<const __half2*>(&pair[i]), offset), scale);
    out[i] = *reinterpret_cast<const uint32_t*>(&product);
  }
  return {out[0], out[1]};
}

/// Sixteen codes of a run, as twice eight halves.
struct SixteenHalves {
  uint4 low, high;
};
__device__ __forceinline__ SixteenHalves halves_of_codes(uint4 codes, __half scale) {
  const __half2 both = __half2half2(scale);
  const uint2 a = halves_of_codes(codes.x, both), b = halves_of_codes(codes.y, both);
  const uint2 c = halves_of_codes(codes.z, both), d = halves_of_codes(codes.w, both);
  return {{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
}

}  // namespace sluice::backend::cuda
