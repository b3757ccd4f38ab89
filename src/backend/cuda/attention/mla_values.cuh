// The last step of latent attention on tensor cores: values of cached rows, weighed (the product of P and V
// in FlashAttention's terms), for a warp's 64 of the 512 columns and all queries of a thread block. Rows lie
// in shared memory, kMlaPitch bytes apart; weights beside them as halves, [query][position]. Two ways:
//
//   QueryRowSums     queries are the rows of the matrix instructions: 16 or 32 of them (some rows)
//   QueryColumnSums  queries are the eight columns, 20 heads fill 24 (one row)
//
// What the softmax keeps of earlier sums when its maximum grows, a factor a query, comes by shared memory.
#pragma once

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/prim/mma.cuh"

namespace sluice::backend::cuda {

inline constexpr int kMlaWarpColumns = 64;

template <int kTiles>
struct QueryRowSums {
  float of[kTiles][8][4] = {};  ///< tile of 16 queries, eight columns, as mma_16x8x16 has them

  __device__ __forceinline__ void rescale(const float* keep) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float low = keep[16 * i + g], high = keep[16 * i + 8 + g];
#pragma unroll
      for (int n = 0; n < 8; ++n)
        of[i][n][0] *= low, of[i][n][1] *= low, of[i][n][2] *= high, of[i][n][3] *= high;
    }
  }

  /// Of kPositions rows from `rows` on; kStride: from query to query of the weights.
  template <int kPositions, int kStride>
  __device__ __forceinline__ void add(const uint16_t* weights, uint32_t rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int s = 0; s < kPositions / 16; ++s) {
      uint32_t weight[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        load_matrices(weight[i],
                      shared_address(weights + (16 * i + lane % 16) * kStride + 16 * s + lane / 16 * 8));
      }
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t value[4];  // positions 0..7 and 8..15 of columns 0..7, then of columns 8..15
        load_matrices_transposed(value, rows + (16 * s + lane % 16) * kMlaPitch +
                                            (warp * kMlaWarpColumns + n * 8 + lane / 16 * 8) * 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          mma_16x8x16(of[i][n], weight[i], value[0], value[1]);
          mma_16x8x16(of[i][n + 1], weight[i], value[2], value[3]);
        }
      }
    }
  }

  /// Of the first `count` queries, divided by `total` of each where they are `whole`: place(query) is where
  /// its 512 columns go.
  template <typename Place>
  __device__ __forceinline__ void store(int count, bool whole, const float* total, Place place) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int query = 16 * i + 8 * h + g;
        if (query >= count) continue;
        const float factor = whole ? 1.0f / total[query] : 1.0f;
        float* const to = place(query);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          *reinterpret_cast<float2*>(to + warp * kMlaWarpColumns + n * 8 + 2 * t) = {
              of[i][n][2 * h] * factor, of[i][n][2 * h + 1] * factor};
        }
      }
    }
  }
};

/// kColumns: of a warp.
template <int kTiles, int kColumns = kMlaWarpColumns>
struct QueryColumnSums {
  float of[kColumns / 16][kTiles][4] = {};  ///< 16 columns, tile of eight queries, as mma_16x8x16 has them

  __device__ __forceinline__ void rescale(const float* keep) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(keep + 8 * i + 2 * t);
#pragma unroll
      for (int m = 0; m < kColumns / 16; ++m)
        of[m][i][0] *= two.x, of[m][i][1] *= two.y, of[m][i][2] *= two.x, of[m][i][3] *= two.y;
    }
  }

  /// Of the 16 rows from `rows` on; `weights`: the first query's of those, kStride from query to query.
  template <int kStride>
  __device__ __forceinline__ void add(const uint16_t* weights, uint32_t rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t weight[(kTiles + 1) / 2][4];  // of two eights of queries; positions 0..7, then 8..15
    if constexpr (kTiles == 1) {
      const auto* const at = reinterpret_cast<const uint32_t*>(weights + lane / 4 * kStride) + lane % 4;
      weight[0][0] = at[0], weight[0][1] = at[4];
    }
#pragma unroll
    for (int i = 0; kTiles > 1 && i < (kTiles + 1) / 2; ++i) {
      const int query = min(16 * i + lane / 16 * 8, 8 * kTiles - 8) + lane % 8;
      load_matrices(weight[i], shared_address(weights + query * kStride + lane / 8 % 2 * 8));
    }
#pragma unroll
    for (int m = 0; m < kColumns / 16; ++m) {
      uint32_t value[4];  // columns by positions
      load_matrices_transposed(value, rows + (lane % 8 + lane / 16 * 8) * kMlaPitch +
                                          (warp * kColumns + m * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        mma_16x8x16(of[m][i], value, weight[i / 2][i % 2 * 2], weight[i / 2][i % 2 * 2 + 1]);
    }
  }
};

}  // namespace sluice::backend::cuda
