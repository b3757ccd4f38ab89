// What gemv.cuh has for one row, for some: they lie one behind another as one long row of codes.
#pragma once

#include "backend/cuda/gemv/gemv.cuh"

namespace sluice::backend::cuda {

/// As quantize_eights, but not for a norm: piece `at` of 8 columns from source(at) (16-byte aligned), of
/// `count` (a multiple of 4), after weigh(at, the eight numbers), which may change them. Four lanes
/// share a block. The whole thread block calls it.
template <int kThreads, typename Source, typename Weigh>
__device__ inline void quantize_all(const Activations& x, int count, Source source, Weigh weigh) {
  struct Eight {
    float4 low, high;
  };
  const auto load = [&](int at) {
    Eight v{};
    if (at < count) v.low = load_four(source(at)), v.high = load_four(source(at) + 1);
    return v;
  };
  Eight next = load(static_cast<int>(threadIdx.x));
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at / 32 * 32 < count; at += kThreads) {
    float v[8] = {next.low.x,  next.low.y,  next.low.z,  next.low.w,
                  next.high.x, next.high.y, next.high.z, next.high.w};
    next = load(at + kThreads);
    const bool valid = at < count;
    if (valid) weigh(at, v);
    put_eight(x, at, valid, v, 1.0f);
  }
}

/// Which of kRows parts, `each` long, a place is in: where a division would take a hundred instructions.
template <int kRows>
__device__ inline int part_of(int at, int each) {
  int part = 0;
#pragma unroll
  for (int r = 1; r < kRows; ++r) part += at >= r * each ? 1 : 0;
  return part;
}

/// fetch_norm for quantize_rows.
template <int kRows, int kThreads = kGemvThreads>
__device__ inline void fetch_norm_of_rows(float* to, const float* norm, int columns) {
  const int each = columns / 8;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < kRows * each; at += kThreads) {
    const int piece = at - part_of<kRows>(at, each) * each;
    copy_async(to + 8 * piece, norm + 8 * piece);
    copy_async(to + 8 * piece + 4, norm + 8 * piece + 4);
  }
}

/// The first `rows` of kRows rows, one behind another in the blocks of x, times a norm's weights where they
/// are given (in shared memory, by fetch_norm_of_rows). squares: this thread's parts of each row's sum of
/// squares.
template <int kRows, int kThreads = kGemvThreads>
__device__ inline void quantize_rows(const Activations& x, const Rows<float>& in, int rows, const float* norm,
                                     float (&squares)[kRows]) {
  const int each = x.columns / (8 * kRows);
#pragma unroll
  for (float& one : squares) one = 0;
  quantize_all<kThreads>(
      x, rows * each,
      [&](int at) {
        const int row = part_of<kRows>(at, each);
        return reinterpret_cast<const float4*>(in(row)) + 2 * (at - row * each);
      },
      [&](int at, float(&v)[8]) {
        if (norm == nullptr) return;
        const int row = part_of<kRows>(at, each);
        const float4 c = reinterpret_cast<const float4*>(norm)[2 * (at - row * each)];
        const float4 d = reinterpret_cast<const float4*>(norm)[2 * (at - row * each) + 1];
        const float weights[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += v[i] * v[i], v[i] *= weights[i];
#pragma unroll
        for (int r = 0; r < kRows; ++r) squares[r] += row == r ? sum : 0.0f;
      });
}

/// reduce_for_norm of rows. partial: shared memory of kRows times kWarps floats.
template <int kRows, int kWarps = kGemvWarps>
__device__ inline void reduce_for_norms(const float (&squares)[kRows], float* partial, int columns,
                                        float epsilon, float (&factors)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float of_warp = lane_sum(squares[r]);
    if (threadIdx.x % 32 == 0) partial[r * kWarps + threadIdx.x / 32] = of_warp;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(partial + r * kWarps + w);
      sum += (four.x + four.y) + (four.z + four.w);
    }
    factors[r] = rsqrtf(sum / static_cast<float>(columns) + epsilon);
  }
}

}  // namespace sluice::backend::cuda
