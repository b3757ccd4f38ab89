// The kernel of norm_moe_gate_up of two rows: that of one row (gemv_routed_kernel.cuh) with a pair of a row
// and an expert in the place of an expert. Two rows seldom share an expert (with 4 of 64 one in 16), and
// where they do the second reads it from L2. The router is multiplied by the launch before (RouterSums), or
// has a launch of its own.
#pragma once

#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_rows.cuh"

namespace sluice::backend::cuda::gemv_rows {

/// What a thread block selects; a row has a warp.
struct Selection {
  int32_t ids[kMostSlots];  ///< of pairs, row by row
  float bias[kRows][32 * kMostEach], parts[kRows][32 * kMostEach];
};

/// Asks for the biases; they are there after wait_for_copies.
__device__ inline void fetch_biases(const Args& args, float* to) {
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) % 32; e < args.rule.experts && args.bias != nullptr; e += 32)
    copy_async_four(to + e, args.bias + e);
}

/// A product with the router that the launch before has left.
__device__ inline float sum_of(const Args& args, int row, int logit) {
  long long sum = 0;
#pragma unroll
  for (int i = 0; i < RouterSums::kCopies; ++i)
    sum +=
        static_cast<long long>(__ldcg(args.sums + (row * RouterSums::kCopies + i) * args.logits() + logit));
  return static_cast<float>(sum) * (1.0f / RouterSums::kOne);
}

/// Takes what the launch before has left of a row: its products with the router, or its logits.
__device__ inline void take_parts(const Args& args, int row, uint32_t flag, float* parts) {
  const int experts = args.rule.experts;
#pragma unroll 2
  for (int e = static_cast<int>(threadIdx.x) % 32; e < experts; e += 32) {
    parts[e] = args.sums != nullptr ? sum_of(args, row, e)
                                    : take_slot(args.mailbox.slots + kLogitsSlots + row * experts + e, flag);
  }
}

/// That of the shared experts: a product, or a logit.
__device__ inline float shared_logit(const Args& args, int row) {
  return args.sums != nullptr ? sum_of(args, row, args.rule.experts)
                              : take_slot(args.shares + row, args.mailbox.flag());
}

/// factor: of the norm, for sums. The first block's selection is the op's. A whole warp calls it.
__device__ inline void select(const Args& args, int row, uint32_t flag, float factor, Selection& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32, experts = args.rule.experts, used = args.rule.used;
  with_experts_of_lane(experts, [&]<int kEach>() {
    float scores[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = s.parts[row][min(lane + 32 * i, experts - 1)];
      if (args.sums != nullptr) scores[i] *= factor;
    }
    int id;
    float weight;
    route_lanes(args.rule, scores, args.bias != nullptr ? s.bias[row] : nullptr, id, weight);
    if (lane >= used) return;
    s.ids[row * used + lane] = id;
    if (blockIdx.x != 0) return;
    if (args.selected != nullptr) put_slot(args.selected + row * used + lane, __int_as_float(id), flag);
    args.ids(row)[lane] = id, args.weights(row)[lane] = weight;
  });
}

/// Named barrier 1: for the warps of a block that share it.
__device__ inline void sync_warps(int warps) { asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory"); }

/// A warp takes rows of the shared matrix, which all rows of the step are multiplied by, or of experts.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kGemvThreads, 2)
    rows_routed(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kRows * kGemvWarps];
  __shared__ Selection selection;
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x),
            warp = warp_of_launch();
  const Activations x{0, kRows * args.columns, true, false};
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(x.columns, true, false)));
  fetch_norm_of_rows<kRows>(norm, args.norm, args.columns);
  const int rows = *args.rows;  // uploaded before the step's first kernel: no wait
  float squares[kRows], factors[kRows];
  if (warp < args.shared_warps) {
    Walk<Shared, kRows> walk(args.shared, args.blocks, args.lanes, warp, args.shared_warps);
    walk.set_slots(args.shared.slots);
    walk.begin();
    pdl.wait();
    wait_for_copies();
    float shares[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (args.has_shares && r < rows) shares[r] = shared_logit(args, r);
    quantize_rows<kRows>(x, args.in, rows, norm, squares);
    reduce_for_norms<kRows>(squares, partial, args.columns, args.epsilon, factors);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      shares[r] = args.has_shares ? sigmoid(args.sums != nullptr ? factors[r] * shares[r] : shares[r]) : 1.0f;
    walk.run_all(x, factors, shares, rows, args.shared_stride);
    return;
  }
  const int from_last = kGemvWarps - 1 - static_cast<int>(threadIdx.x) / 32;
  const uint32_t flag = args.mailbox.flag();
  const bool selects = from_last < rows;
  if (selects) fetch_biases(args, selection.bias[from_last]);
  pdl.wait();
  if (selects) take_parts(args, from_last, flag, selection.parts[from_last]);
  if (from_last == kRows) clear_sums(args.clear, args.logits());
  wait_for_copies();
  quantize_rows<kRows>(x, args.in, rows, norm, squares);
  reduce_for_norms<kRows>(squares, partial, args.columns, args.epsilon, factors);
  Walk<Routed, kRows> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                           warps_of_launch() - args.shared_warps);
  if (selects) select(args, from_last, flag, walk.factor_of(factors, from_last), selection);
  // The block's warps of the shared matrix are its first.
  sync_warps(kGemvWarps - (args.shared_warps - block + blocks - 1) / blocks);
  walk.set_slots(rows * args.rule.used);
  walk.take_ids(selection.ids);
  walk.begin();
  walk.run_rows(x, factors, args.rule.used, args.routed_stride);
}

template <Type Routed>
bool launch_rows(const Context& context, Type shared, const Args& args, const LaunchShape& shape) {
  return with_second_type<Routed>(
      shared, [&]<Type, Type Shared>() { launch(context, rows_routed<Routed, Shared>, shape, args); });
}

}  // namespace sluice::backend::cuda::gemv_rows
