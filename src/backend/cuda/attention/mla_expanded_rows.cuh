// Rows that attend to expanded keys and values: what the kernels of mla_expanded_attend.cu (wgmma) and
// mla_expanded_sm80.cu share.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_expanded.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

inline constexpr int kHalfTile = kExpandTile / 2;  ///< rows whose queries lie together

/// 128 rows of a segment, the last ones' perhaps fewer.
struct RowTile {
  Segment segment;
  int first, longest;  ///< of the segment's rows; positions that its last row sees

  /// The step's tile of this number; there is one.
  __device__ __forceinline__ RowTile(const Expanded& e, int number) {
    int s = 0;
    while (s + 1 < e.step.prompts->segments && number >= e.step.segments[s + 1].first_tile) ++s;
    segment = e.step.segments[s];
    first = (number - segment.first_tile) * kExpandTile;
    longest = limit(kExpandTile - 1);
  }
  /// Row i of the tile, or the last one again.
  __device__ __forceinline__ int row(int i) const { return min(first + i, segment.rows - 1); }
  __device__ __forceinline__ int limit(int i) const { return segment.position + row(i) + 1; }
};

__device__ __forceinline__ float power_of_two(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

/// The running softmax (online softmax) of two rows of a tile over kKeys positions at a time, and the sums of
/// values under it. A warp has 16 rows: four lanes share rows g and g + 8, g = lane / 4, and have two of
/// every eight positions or columns, as matrix instructions leave them.
template <int kKeys, int kValue>
struct TwoRows {
  using Scores = float[kKeys / 8][4];
  /// What a row's window leaves out: not minus infinity, since a row may see nothing of its first keys. Their
  /// weights are wiped out by the first score that counts. A power of two, so that a factor rounds it
  /// nowhere.
  static constexpr float kOutside = -0x1p100f;
  int limit[2], least;         ///< positions that these rows see, and that all rows beside them do
  int window = 0, lowest = 0;  ///< positions of a row's context that it sees, 0: all; where all rows do so
  float factor[2];             ///< makes scores powers of two
  float largest[2] = {-INFINITY, -INFINITY}, all[2] = {0, 0}, keep[2];
  float sum[kValue / 8][4];

  /// Scores of the positions from `from` on to weights; keep: what sums have to be multiplied by before.
  __device__ __forceinline__ void soften(Scores& score, int from) {
    const int t = threadIdx.x % 4;
    if (from + kKeys > least) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (from + n * 8 + 2 * t + k >= limit[h]) score[n][2 * h + k] = -INFINITY;
          }
        }
      }
    }
    if (from < lowest) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (from + n * 8 + 2 * t + k < limit[h] - window) score[n][2 * h + k] = kOutside;
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = largest[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
      top = lane_max(top, 4);
      keep[h] = power_of_two((largest[h] - top) * factor[h]);
      largest[h] = top;
      const float scaled = top * factor[h];
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float a = power_of_two(fmaf(score[n][2 * h], factor[h], -scaled));
        const float b = power_of_two(fmaf(score[n][2 * h + 1], factor[h], -scaled));
        total += a + b;
        score[n][2 * h] = a, score[n][2 * h + 1] = b;
      }
      all[h] = all[h] * keep[h] + total;
    }
  }
  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int n = 0; n < kValue / 8; ++n)
      sum[n][0] *= keep[0], sum[n][1] *= keep[0], sum[n][2] *= keep[1], sum[n][3] *= keep[1];
  }
  /// Weights as the first operand.
  __device__ __forceinline__ void pack(uint32_t (&weight)[kKeys / 16][4], const Scores& score) const {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      weight[n / 2][n % 2 * 2] = pack_halves(score[n][0], score[n][1]);
      weight[n / 2][n % 2 * 2 + 1] = pack_halves(score[n][2], score[n][3]);
    }
  }
  /// The results of the tile's rows `row` and row + 8. Values' columns lie so that a lane has eight
  /// neighbours.
  __device__ __forceinline__ void store(const AttendExpanded& p, const RowTile& tile, int row,
                                        int head) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = all[h];
      total += __shfl_xor_sync(kWholeWarp, total, 1);
      total += __shfl_xor_sync(kWholeWarp, total, 2);
      const float inverse = 1.0f / total;
      if (tile.first + row + 8 * h >= tile.segment.rows) continue;
      float* const to =
          p.out(tile.segment.first_row + tile.first + row + 8 * h, head) + 8 * (threadIdx.x % 4);
#pragma unroll
      for (int n = 0; n < kValue / 8; n += 2) {
        *reinterpret_cast<float4*>(to + n / 4 * 32 + n % 4 * 2) = {
            sum[n][2 * h] * inverse, sum[n][2 * h + 1] * inverse, sum[n + 1][2 * h] * inverse,
            sum[n + 1][2 * h + 1] * inverse};
      }
    }
  }
};

/// Rotated, scaled to halves, in the order of the keys; a warp a query.
template <typename S>
__device__ __forceinline__ void bring_queries(const AttendExpanded& p, const RopeTable& rope,
                                              const RowTile& tile, int head, char* to, float* factors) {
  constexpr int kAtOnce = 8;  // queries of a warp that are on their way together
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = rope.first(lane), second = rope.second(lane, kExpandRotated / 2);
#pragma unroll
  for (int from = 0; from < kExpandTile; from += 8 * kAtOnce) {
    float2 v[kAtOnce][S::kNope / 64];
    float ends[kAtOnce][2];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const float* const query = p.queries(tile.segment.first_row + tile.row(from + 8 * k + warp), head);
#pragma unroll
      for (int b = 0; b < S::kNope / 64; ++b)
        v[k][b] = __ldg(reinterpret_cast<const float2*>(query + b * 64) + lane);
      ends[k][0] = __ldg(query + S::kNope + first), ends[k][1] = __ldg(query + S::kNope + second);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = from + 8 * k + warp;
      const SinCos sin_cos = rope.sin_cos(tile.limit(i) - 1, lane, p.factors);
      const float x = ends[k][0] * sin_cos.cosine - ends[k][1] * sin_cos.sine;
      const float y = ends[k][0] * sin_cos.sine + ends[k][1] * sin_cos.cosine;
      float largest = fmaxf(fabsf(x), fabsf(y));
#pragma unroll
      for (int b = 0; b < S::kNope / 64; ++b)
        largest = fmaxf(largest, fmaxf(fabsf(v[k][b].x), fabsf(v[k][b].y)));
      const float unscale = query_unscale(lane_max(largest)), scale = 1.0f / unscale;

      char* const group = to + i / kHalfTile * S::kQueryBytes;
      const int in_group = i % kHalfTile;
      const int unit = lane / 16 * 4 + lane % 4, word = lane % 16 / 4;
#pragma unroll
      for (int b = 0; b < S::kNope / 64; ++b) {
        *reinterpret_cast<uint32_t*>(group + b * kHalfTile * kExpandBlock + swizzled_unit(in_group, unit) +
                                     word * 4) = pack_halves(v[k][b].x * scale, v[k][b].y * scale);
      }
      char* const rotated = group + S::kNope / 64 * kHalfTile * kExpandBlock;
      *reinterpret_cast<__half*>(rotated + swizzled_unit(in_group, first / 8) + first % 8 * 2) =
          __float2half_rn(x * scale);
      *reinterpret_cast<__half*>(rotated + swizzled_unit(in_group, second / 8) + second % 8 * 2) =
          __float2half_rn(y * scale);
      if (lane == 0) factors[i] = unscale * p.scale_log2;
    }
  }
}

}  // namespace sluice::backend::cuda
