// Values of one row from the parts of its heads' contexts that thread blocks have left in scratch: how both
// ways to attend over all SMs end (mla_heads_split_kv.cu, mla_heads_sm80.cu).
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads.cuh"
#include "backend/cuda/gemv/lane_rows.cuh"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {

struct ValueArgs {
  Rows<float> out;
  Matrix v_b;
  int count;              ///< parts of a head
  char* form_at;          ///< null, or the values quantised: a row of activations of all heads
  const float2* weights;  ///< [part][head]: the largest score, the sum of the weights below it
  const uint16_t* parts;  ///< [part][head][rank]: contexts, halves; zeroes where that sum is 0
};

/// A block joins the parts of a head and multiplies 32 rows of v_b.
template <typename One, int kMostParts>
__global__ void __launch_bounds__(kHeadThreads)
    join_values_kernel(const Timestamps timestamps, const __grid_constant__ ValueArgs p) {
  constexpr int kEach = kHeadThreads / kRowLanes, kPasses = (kMostParts + 31) / 32, kAtOnce = 16;
  __shared__ float values[kHeadThreads];
  const PdlLink pdl(timestamps);
  const int columns = p.out.columns, shares = (columns + kEach - 1) / kEach;
  const int head = static_cast<int>(blockIdx.x) / shares, share = static_cast<int>(blockIdx.x) % shares;
  const int first = share * kEach, lane = threadIdx.x % 32, heads = p.out.heads;
  const int v_row = static_cast<int>(p.v_b.row(head, first));
  auto v =
      lane_rows<One, kHeadThreads>(p.v_b, min(kEach, columns - first), [v_row](int i) { return v_row + i; });
  v.ask();
  pdl.wait();
  static_assert(kMlaRank == 2 * kHeadThreads, "a thread has two columns");
  const auto load = [&](uint32_t(&part)[kAtOnce], int from) {
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int there = min(from + r, p.count - 1);
      part[r] =
          __ldcg(reinterpret_cast<const uint32_t*>(p.parts + (int64_t{there} * heads + head) * kMlaRank) +
                 threadIdx.x);
    }
  };
  uint32_t part[kAtOnce];
  load(part, 0);
  float2 weight[kPasses];
  float most = -INFINITY, all = 0;
  int last = 0;  // part that is there
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    weight[i] = __ldcg(p.weights + min(32 * i + lane, p.count - 1) * heads + head);
    most = fmaxf(most, weight[i].x);
  }
  most = lane_max(most);
  float mine[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const bool there = 32 * i + lane < p.count && weight[i].y > 0;
    mine[i] = there ? exp2f(weight[i].x - most) * weight[i].y : 0.0f;
    all += mine[i];
    if (there) last = 32 * i + lane;
  }
  if (kMostParts > kAtOnce) last = __reduce_max_sync(kWholeWarp, last);
  const float inverse = __fdividef(1.0f, lane_sum(all));
  float2 context{0, 0};
#pragma unroll
  for (int from = 0; from < kMostParts; from += kAtOnce) {
    if (from > 0) {
      if (from > last) break;
      load(part, from);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const float share = __shfl_sync(kWholeWarp, mine[(from + r) / 32] * inverse, (from + r) % 32);
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&part[r]));
      context.x += share * v.x, context.y += share * v.y;
    }
  }
  // A warp has two blocks of 32 columns, a lane a pair of one: a column of each now.
  const Activations x{0, kMlaRank, true, false};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float even = __shfl_sync(kWholeWarp, context.x, i * 16 + lane / 2);
    const float odd = __shfl_sync(kWholeWarp, context.y, i * 16 + lane / 2);
    quantize_lanes(x, static_cast<int>(threadIdx.x) / 32 * 2 + i, lane % 2 == 0 ? even : odd);
  }
  __syncthreads();
  v.multiply(x, [&](int row, float value) { p.out(0, head)[first + row] = values[row] = value; });
  if (p.form_at == nullptr) return;
  __syncthreads();
  const int block = static_cast<int>(threadIdx.x) / 32;
  if (block * 32 < v.count)
    quantize_lanes(p.form_at, heads * columns / 32, (head * columns + first) / 32 + block,
                   values[threadIdx.x]);
}

/// kMostParts: p.count at most.
template <int kMostParts>
void join_values(const ValueArgs& p, const Context& context) {
  constexpr int kEach = kHeadThreads / kRowLanes;
  const auto kernel =
      p.v_b.type == quant::Type::Q8_0   ? join_values_kernel<TypedRaw<quant::Type::Q8_0>, kMostParts>
      : p.v_b.type == quant::Type::Q4_0 ? join_values_kernel<TypedRaw<quant::Type::Q4_0>, kMostParts>
      : p.v_b.type == quant::Type::Q4_K ? join_values_kernel<TypedRaw<quant::Type::Q4_K>, kMostParts>
                                        : join_values_kernel<AnyRaw, kMostParts>;
  const int shares = (p.out.columns + kEach - 1) / kEach;
  launch(context, kernel,
         {dim3(static_cast<unsigned>(p.out.heads * shares)), dim3(kHeadThreads),
          Activations::row_bytes(kMlaRank, true, false)},
         p);
}

}  // namespace sluice::backend::cuda
