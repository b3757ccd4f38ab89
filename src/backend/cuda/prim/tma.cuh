// How a warp asks TMA for pieces of tensors (host/tensor_map.h): one lane does, of places that the compiler
// knows to be the same on all lanes, since otherwise it gathers them lane by lane.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

/// A tensor map is fetched when it is used first, unless it was before.
__device__ __forceinline__ void fetch_map(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

/// What all lanes know to be the same, so that the compiler does, too.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(kWholeWarp, value, 0); }
__device__ __forceinline__ int warp_index() { return uniform(static_cast<int>(threadIdx.x) / 32); }

/// One lane of the warp, and the compiler knows that it is one.
__device__ __forceinline__ bool is_elected() {
  uint32_t is = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
#endif
  return is != 0;
}

/// A copy of a map of three dimensions (map_tiles): rows from `row` on, groups of columns from `group` on.
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, int row, int group, uint32_t to,
                                          uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(0), "r"(row), "r"(group), "r"(barrier)
      : "memory");
#endif
}

}  // namespace sluice::backend::cuda
