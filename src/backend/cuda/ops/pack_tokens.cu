// What the wide regimes do around their products: activations to halves (prim/wide.h), pairs of rows and
// experts in the order of the experts, experts' results added up. All bound by memory: a pass over their
// operands each.
#include "backend/cuda/ops/wide_parts.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kPackThreads = 256;

/// The power of two that takes numbers up to `largest` below 2^15, and its inverse, both normal.
struct PowerOfTwo {
  float factor, inverse;
};
__device__ PowerOfTwo scale_for(float largest) {
  const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 15), 254);
  return {__uint_as_float(static_cast<uint32_t>(268 - exponent) << 23),
          __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23)};
}

/// The numbers at columns [c, c + 4) of a row, zeroes beyond its end.
__device__ float4 four_of(const float* row, int c, int columns, bool aligned) {
  if (aligned && c + 4 <= columns) return *reinterpret_cast<const float4*>(row + c);
  float4 v{0, 0, 0, 0};
  if (c < columns) v.x = row[c];
  if (c + 1 < columns) v.y = row[c + 1];
  if (c + 2 < columns) v.z = row[c + 2];
  if (c + 3 < columns) v.w = row[c + 3];
  return v;
}

/// The row that a slot holds; null: none, which in a strip means zeroes.
struct Source {
  const float* row;
  bool there;
};
__device__ Source source_of(const PackPlan& p, int slot) {
  if (p.list != nullptr) {
    if (slot >= *p.slots) return {nullptr, false};
    const int32_t pair = p.list[slot];
    if (pair < 0) return {nullptr, true};
    return {p.in(pair / p.divisor, p.heads_of_pairs ? pair % p.divisor : 0), true};
  }
  if (p.heads_of_pairs) {
    return {p.in(slot / p.divisor, slot % p.divisor), slot < *p.slots * p.divisor};
  }
  const int r = slot % p.per_matrix;
  if (r < *p.slots) return {p.in(r, slot / p.per_matrix), true};
  return {nullptr, p.strips};
}

__device__ void write_pairs(const PackPlan& p, int slot, int chunks, int chunk, float4 v, float factor) {
  const int lane = threadIdx.x % 32, block = lane / 8, pair = 4 * (lane % 4) + 2 * (lane / 4 % 2);
  const uint32_t even = pack_halves(v.x * factor, v.z * factor),
                 odd = pack_halves(v.y * factor, v.w * factor);
  auto* const words = reinterpret_cast<uint32_t*>(p.data);
  if (p.strips) {  // pair q of the four blocks is a unit of 16 bytes, unit q % 8 of its 64 columns
    const int token = slot % kStripTokens;
    const int64_t strip =
        (int64_t{slot / kGroupTokens} * chunks + chunk) * 4 + slot % kGroupTokens / kStripTokens;
    const int64_t atom = strip * 2 + pair / 8;
    uint32_t* const of_token = words + atom * 256 + token * 32 + block;
    of_token[(pair % 8 ^ token) * 4] = even;
    of_token[((pair + 1) % 8 ^ token) * 4] = odd;
  } else {
    *reinterpret_cast<uint2*>(words + (int64_t{slot} * chunks + chunk) * 64 + pair / 4 * 16 + block * 4 +
                              pair % 4) = {even, odd};
  }
}

/// kWarps warps pack a slot, a warp a chunk of 128 columns at a time; lane l takes four columns of it: those
/// of pairs q and q + 1 of block l / 8. The first chunks of each warp stay in registers between the two
/// passes.
template <int kWarps>
__global__ void __launch_bounds__(kPackThreads) pack_tokens_kernel(const PackPlan p, int slots) {
  constexpr int kHeld = 4;
  __shared__ float partial[kPackThreads / 32];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % kWarps;
  const int slot = static_cast<int>(blockIdx.x) * (kPackThreads / 32 / kWarps) + threadIdx.x / 32 / kWarps;
  if (slot >= slots) return;
  const Source source = source_of(p, slot);
  if (!source.there) return;
  const int columns = p.in.columns, chunks = static_cast<int>(padded_columns(columns) / kChunkColumns);
  const bool aligned = reinterpret_cast<uintptr_t>(source.row) % 16 == 0;
  const auto load = [&](int chunk) {
    if (source.row == nullptr || chunk >= chunks) return float4{0, 0, 0, 0};
    return four_of(source.row, chunk * kChunkColumns + lane * 4, columns, aligned);
  };
  const auto larger = [](float m, float4 v) {
    return fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), m);
  };

  float4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = load(warp + i * kWarps);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = larger(largest, held[i]);
  for (int chunk = warp + kHeld * kWarps; chunk < chunks; chunk += kWarps)
    largest = larger(largest, load(chunk));
  largest = lane_max(largest);
  if constexpr (kWarps > 1) {  // one slot a block of threads
    if (lane == 0) partial[warp] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, partial[i]);
  }
  const PowerOfTwo scale = scale_for(largest);
  if (warp == 0 && lane == 0) p.scale[slot] = scale.inverse;

#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int chunk = warp + i * kWarps;
    if (chunk < chunks) write_pairs(p, slot, chunks, chunk, held[i], scale.factor);
  }
  for (int chunk = warp + kHeld * kWarps; chunk < chunks; chunk += kWarps) {
    write_pairs(p, slot, chunks, chunk, load(chunk), scale.factor);
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

/// A block of threads takes an expert. It counts all pairs, so that it knows where its own begin; then every
/// thread places those of a stretch of its own: rows ascending.
__global__ void __launch_bounds__(kOrderThreads) order_pairs_kernel(const OrderPlan p) {
  extern __shared__ int count[];  // [experts]
  __shared__ int partial[kOrderThreads / 32];
  let_next_start();
  wait_for_previous();
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

constexpr int kCombineThreads = 256;

/// A block of threads takes a row: its experts' results in the order of their ids.
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombinePlan p) {
  __shared__ int order[kMostUsed];
  __shared__ float weight[kMostUsed];
  let_next_start();
  wait_for_previous();
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
  for (int n = threadIdx.x; n < p.out.columns; n += kCombineThreads) {
    float sum = p.base(r)[n];
    for (int i = 0; i < p.used; ++i) {
      sum += weight[i] * __ldg(p.each + (int64_t{r} * p.used + order[i]) * p.out.columns + n);
    }
    p.out(r)[n] = sum;
  }
}

}  // namespace

void pack_tokens(const PackPlan& plan, int64_t slots, const Context& context) {
  constexpr int kWarps = kPackThreads / 32;
  const bool is_short = plan.in.columns <= 4 * kChunkColumns;
  const auto blocks = static_cast<unsigned>(is_short ? (slots + kWarps - 1) / kWarps : slots);
  launch(context, is_short ? pack_tokens_kernel<1> : pack_tokens_kernel<kWarps>,
         {dim3(blocks), dim3(kPackThreads)}, plan, static_cast<int>(slots));
}

void order_pairs(const OrderPlan& plan, const Context& context) {
  launch(context, order_pairs_kernel,
         {dim3(static_cast<unsigned>(plan.experts)), dim3(kOrderThreads), int64_t{plan.experts} * 4}, plan);
}

void combine_experts(const CombinePlan& plan, const Context& context) {
  launch(context, combine_kernel, {dim3(static_cast<unsigned>(context.step_rows)), dim3(kCombineThreads)},
         plan);
}

}  // namespace sluice::backend::cuda
