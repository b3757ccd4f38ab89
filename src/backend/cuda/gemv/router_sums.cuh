// A router multiplied where its rows are made (RouterSums, gemv.h): a thread block that makes neighbouring
// elements of some rows adds their part of every expert's product to the sums. So the kernel behind finds
// these when it begins, where they would cost it a trip through L2.
#pragma once

#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/gemv/gemv.h"

namespace sluice::backend::cuda {

inline constexpr int kRoutedOutputs = 16;  ///< neighbouring elements of a row, of a thread block

/// Bytes of shared memory: columns of the router [logits][kRoutedOutputs].
inline int64_t router_columns_bytes(const RouterSums& sums) {
  return int64_t{4} * sums.logits * kRoutedOutputs;
}

/// Asks for the router's columns and the norm's weights of the elements from `first` on, to shared memory.
/// The whole thread block calls it.
template <int kThreads>
__device__ inline void fetch_router(const RouterSums& sums, float* columns, float* norm, int first) {
  constexpr int kQuads = kRoutedOutputs / 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < sums.logits * kQuads; i += kThreads)
    copy_async(columns + 4 * i, sums.row(i / kQuads) + first + i % kQuads * 4);
  if (threadIdx.x < kQuads) copy_async(norm + 4 * threadIdx.x, sums.norm + first + 4 * threadIdx.x);
}

/// Adds the parts of `made` [rows][kRoutedOutputs], elements times the norm's weights. The whole thread block
/// calls it.
template <int kThreads>
__device__ inline void add_router_parts(const RouterSums& sums, const float* columns, const float* made,
                                        int rows) {
  constexpr int kPair = 2;  // columns that a thread multiplies
  constexpr int kEach = kRoutedOutputs / kPair;
  const int copy = static_cast<int>(blockIdx.x) % RouterSums::kCopies;
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    unsigned long long* const of_row = sums.slots + (r * RouterSums::kCopies + copy) * sums.logits;
    const int all = sums.logits * kEach;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i / 32 * 32 < all; i += kThreads) {
      const float2 w = reinterpret_cast<const float2*>(columns)[min(i, all - 1)];
      const float2 v = reinterpret_cast<const float2*>(made + r * kRoutedOutputs)[i % kEach];
      const float part = lane_sum(v.x * w.x + v.y * w.y, kEach);
      if (i % kEach == 0 && i < all)
        atomicAdd(of_row + i / kEach,
                  static_cast<unsigned long long>(__float2ll_rn(part * RouterSums::kOne)));
    }
  }
}

/// Makes the sums of an earlier router zero again, the blocks of the launch together, a warp of each.
__device__ inline void clear_sums(unsigned long long* sums, int logits) {
  if (sums == nullptr) return;
  const int all = static_cast<int>(RouterSums::all_slots(logits));
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x * 32 + threadIdx.x % 32); i < all;
       i += static_cast<int>(gridDim.x) * 32)
    sums[i] = 0;
}

}  // namespace sluice::backend::cuda
