// What GEMMs do around their products: activations to halves (gemm/gemm.h), pairs of rows and experts in the
// order of the experts, experts' results added up. All bound by memory: a pass over their operands each.
#include "backend/cuda/gemm/gemm_parts.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {
namespace {

/// Slots of `one`, then those of `other`.
template <int kWarps>
__global__ void __launch_bounds__(kPackThreads)
    pack_tokens_kernel(const Timestamps timestamps, const PackPlan one, const PackPlan other, int of_one,
                       int slots) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int slot = static_cast<int>(blockIdx.x) * (kPackThreads / 32 / kWarps) + threadIdx.x / 32 / kWarps;
  if (slot >= slots) return;
  if (slot < of_one) {
    pack_slot<kWarps>(one, slot);
  } else {
    pack_slot<kWarps>(other, slot - of_one);
  }
}

constexpr int kOrderThreads = 1024;

/// The sums of `value` over the threads before this one and over all; the block meets.
struct Scan {
  int before, all;
};
__device__ Scan block_scan(int value, int* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) partial[warp] = sum;
  __syncthreads();
  Scan scan{sum - value, 0};
  for (int i = 0; i < kOrderThreads / 32; ++i) {
    if (i < warp) scan.before += partial[i];
    scan.all += partial[i];
  }
  __syncthreads();
  return scan;
}

/// A thread block takes an expert. It counts all pairs, so that it knows where its own begin; then every
/// thread places those of a stretch of its own: rows ascending.
__global__ void __launch_bounds__(kOrderThreads)
    order_pairs_kernel(const Timestamps timestamps, const OrderPlan p) {
  extern __shared__ int count[];  // [experts]
  __shared__ int partial[kOrderThreads / 32];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int pairs = *p.rows * p.used, expert = static_cast<int>(blockIdx.x);
  const int stretch = (pairs + kOrderThreads - 1) / kOrderThreads, first = min(threadIdx.x * stretch, pairs);
  const int last = min(first + stretch, pairs);
  for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) count[e] = 0;
  __syncthreads();
  int mine = 0;
  for (int i = first; i < last; ++i) {
    const int id = p.ids.data[i];
    mine += id == expert ? 1 : 0;
    atomicAdd(&count[id], 1);
  }
  __syncthreads();
  int entries = 0, tiles = 0;  // of the experts before this one, in part
  for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) {
    if (e < expert) {
      entries += (count[e] + kGroupTokens - 1) / kGroupTokens * kGroupTokens;
      tiles += (count[e] + p.tile_tokens - 1) / p.tile_tokens;
    }
  }
  const int begin = block_scan(entries, partial).all, first_tile = block_scan(tiles, partial).all;
  int at = begin + block_scan(mine, partial).before;
  const int own = count[expert], end = begin + (own + kGroupTokens - 1) / kGroupTokens * kGroupTokens;
  for (int i = first; i < last; ++i) {
    if (p.ids.data[i] == expert) p.list[at++] = i;
  }
  if (static_cast<int>(threadIdx.x) < end - begin - own) p.list[begin + own + threadIdx.x] = -1;
  const int parts = (own + p.tile_tokens - 1) / p.tile_tokens;
  for (int i = threadIdx.x; i < parts; i += kOrderThreads) {
    const int from = i * p.tile_tokens;
    p.tiles[first_tile + i] = {expert, begin + from, min(p.tile_tokens, own - from), 0};
  }
  if (expert == p.experts - 1 && threadIdx.x == 0) p.counts[0] = first_tile + parts, p.counts[1] = end;
}

constexpr int kCombineThreads = 128;

/// A thread block takes 512 columns of a row: its experts' results in the order of their ids.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const Timestamps timestamps, const CombinePlan p) {
  __shared__ int order[kMostUsed];
  __shared__ float weight[kMostUsed];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int r = static_cast<int>(blockIdx.x);
  if (r >= *p.rows) return;
  if (static_cast<int>(threadIdx.x) < p.used) {
    const int k = threadIdx.x, id = p.ids(r)[k];
    int rank = 0;
    for (int i = 0; i < p.used; ++i) rank += p.ids(r)[i] < id ? 1 : 0;  // ids are distinct
    order[rank] = k;
    weight[rank] = p.weights(r)[k];
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.y) * kCombineThreads * 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int n = first + k * kCombineThreads + static_cast<int>(threadIdx.x);
    if (n >= p.out.columns) return;
    float sum = p.base(r)[n];
#pragma unroll 4
    for (int i = 0; i < p.used; ++i) {
      sum += weight[i] * __ldg(p.each + (int64_t{r} * p.used + order[i]) * p.out.columns + n);
    }
    p.out(r)[n] = sum;
  }
}

/// The same for few experts a row: everything is asked for at once, and the order found meanwhile.
constexpr int kUsedInRegisters = 8;
__global__ void __launch_bounds__(kCombineThreads)
    combine_small_batch_kernel(const Timestamps timestamps, const CombinePlan p) {
  const PdlLink pdl(timestamps);
  const int r = static_cast<int>(blockIdx.x),
            rows = *p.rows;  // uploaded before the step's first kernel: no wait
  const int n = (static_cast<int>(blockIdx.y) * kCombineThreads + static_cast<int>(threadIdx.x)) * 4;
  pdl.wait();
  if (r >= rows || n >= p.out.columns) return;
  float4 each[kUsedInRegisters];
  int id[kUsedInRegisters];
  float weight[kUsedInRegisters];
#pragma unroll
  for (int k = 0; k < kUsedInRegisters; ++k) {
    if (k >= p.used) break;
    each[k] = __ldg(reinterpret_cast<const float4*>(p.each + (int64_t{r} * p.used + k) * p.out.columns + n));
    id[k] = p.ids(r)[k], weight[k] = p.weights(r)[k];
  }
  float4 sum = *reinterpret_cast<const float4*>(p.base(r) + n);
  for (int i = 0; i < p.used; ++i) {
#pragma unroll
    for (int k = 0; k < kUsedInRegisters; ++k) {
      if (k >= p.used) break;
      int rank = 0;
#pragma unroll
      for (int other = 0; other < kUsedInRegisters; ++other)
        rank += other < p.used && id[other] < id[k] ? 1 : 0;
      if (rank != i) continue;
      sum.x += weight[k] * each[k].x, sum.y += weight[k] * each[k].y;
      sum.z += weight[k] * each[k].z, sum.w += weight[k] * each[k].w;
    }
  }
  *reinterpret_cast<float4*>(p.out(r) + n) = sum;
}

}  // namespace

void pack_tokens(const PackPlan& plan, int64_t slots, const Context& context) {
  pack_tokens(plan, slots, plan, 0, context);
}

void pack_tokens(const PackPlan& one, int64_t slots_of_one, const PackPlan& other, int64_t slots_of_other,
                 const Context& context) {
  constexpr int kWarps = kPackThreads / 32;
  const int64_t slots = slots_of_one + slots_of_other;
  const bool fits_warps = std::max(one.in.columns, other.in.columns) <= 4 * kChunkColumns;
  const auto blocks = static_cast<unsigned>(fits_warps ? (slots + kWarps - 1) / kWarps : slots);
  launch(context, fits_warps ? pack_tokens_kernel<1> : pack_tokens_kernel<kWarps>,
         {dim3(blocks), dim3(kPackThreads)}, one, other, static_cast<int>(slots_of_one),
         static_cast<int>(slots));
}

void order_pairs(const OrderPlan& plan, const Context& context) {
  launch(context, order_pairs_kernel,
         {dim3(static_cast<unsigned>(plan.experts)), dim3(kOrderThreads), int64_t{plan.experts} * 4}, plan);
}

void combine_experts(const CombinePlan& plan, const Context& context) {
  constexpr int kColumns = 4 * kCombineThreads;
  const auto in_fours = [&](const Rows<float>& rows) {
    return rows.columns % 4 == 0 && rows.row_stride % 4 == 0 &&
           reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
  };
  launch(context,
         plan.used <= kUsedInRegisters && in_fours(plan.base) && in_fours(plan.out)
             ? combine_small_batch_kernel
             : combine_kernel,
         {dim3(static_cast<unsigned>(context.step_rows),
               static_cast<unsigned>((plan.out.columns + kColumns - 1) / kColumns)),
          dim3(kCombineThreads)},
         plan);
}

}  // namespace sluice::backend::cuda
