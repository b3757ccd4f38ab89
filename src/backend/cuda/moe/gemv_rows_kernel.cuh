// The kernel of norm_moe_gate_up of two rows: that of one row (gemv_routed_kernel.cuh) with a pair of a row
// and an expert in the place of an expert. Two rows seldom share an expert (with 4 of 64 one in 16), and
// where they do the second reads it from L2. The router is multiplied by the launch before (RouterSums), or
// has a launch of its own.
#pragma once

#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_rows.cuh"

namespace sluice::backend::cuda::gemv_rows {

/// A product with the router that the launch before has left.
__device__ inline float sum_of(const Args& args, int row, int logit) {
  long long sum = 0;
#pragma unroll
  for (int i = 0; i < RouterSums::kCopies; ++i)
    sum +=
        static_cast<long long>(__ldcg(args.sums + (row * RouterSums::kCopies + i) * args.logits() + logit));
  return static_cast<float>(sum) * (1.0f / RouterSums::kOne);
}

/// What the launch before has left of a row: its product with the router, or its logit.
__device__ inline float part_of_row(const Args& args, int row, int expert, uint32_t flag) {
  return args.sums != nullptr
             ? sum_of(args, row, expert)
             : take_slot(args.mailbox.slots + kLogitsSlots + row * args.rule.experts + expert, flag);
}

/// That of the shared experts: a product, or a logit.
__device__ inline float shared_logit(const Args& args, int row) {
  return args.sums != nullptr ? sum_of(args, row, args.rule.experts)
                              : take_slot(args.shares + row, args.mailbox.flag());
}

/// Leaves the selection and its weights for others. The warps that have selected call it.
__device__ inline void leave_selection(const Args& args, int rows, int expert, const float (&logits)[kRows],
                                       uint32_t flag, BlockSelection (&s)[kRows]) {
  const int used = args.rule.used;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows || expert >= used) continue;
    args.ids(r)[expert] = s[r].ids[expert];
    if (args.selected != nullptr)
      put_slot(args.selected + r * used + expert, __int_as_float(s[r].ids[expert]), flag);
  }
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    const float weight = weigh_block(args.rule, expert, r == 0 ? logits[0] : logits[1], s[r]);
    if (expert < used) args.weights(r)[expert] = weight;
  }
}

/// Named barrier 1: for the warps of a block that share it.
__device__ inline void sync_warps(int warps) { asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory"); }

/// A warp takes rows of the shared matrix, which all rows of the step are multiplied by, or of experts.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kGemvThreads, 2)
    rows_routed(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kRows * kGemvWarps];
  __shared__ BlockSelection selection[kRows];
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
  // Of those that select, a lane's.
  const bool selects = from_last < args.rule.warps;
  const int expert = from_last * 32 + static_cast<int>(threadIdx.x) % 32;
  const int known = min(expert, args.rule.experts - 1);
  float bias = 0, logits[kRows] = {};
  if (selects && args.bias != nullptr) bias = __ldg(args.bias + known);
  if (expert < kRows) selection[expert].count = 0;
  pdl.wait();
  if (selects) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < rows) logits[r] = part_of_row(args, r, known, flag);
  }
  if (from_last == args.rule.warps) clear_sums(args.clear, args.logits());
  wait_for_copies();
  quantize_rows<kRows>(x, args.in, rows, norm, squares);
  reduce_for_norms<kRows>(squares, partial, args.columns, args.epsilon, factors);
  Walk<Routed, kRows> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                           warps_of_launch() - args.shared_warps);
  if (selects) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) logits[r] *= args.sums != nullptr ? factors[r] : 1.0f;
    select_block(args.rule, expert, logits, bias, selection);
  }
  // The block's warps of the shared matrix are its first.
  sync_warps(kGemvWarps - (args.shared_warps - block + blocks - 1) / blocks);
  walk.set_slots(rows * args.rule.used);
  static_assert(kRows == 2);
  const int pair = static_cast<int>(threadIdx.x) % 32, used = args.rule.used;
  walk.expert = pair < used ? selection[0].ids[pair] : selection[1].ids[pair - used];
  walk.begin();
  if (block == 0 && selects) leave_selection(args, rows, expert, logits, flag, selection);
  walk.run_rows(x, factors, args.rule.used, args.routed_stride);
}

template <Type Routed>
bool launch_rows(const Context& context, Type shared, const Args& args, const LaunchShape& shape) {
  return with_second_type<Routed>(
      shared, [&]<Type, Type Shared>() { launch(context, rows_routed<Routed, Shared>, shape, args); });
}

}  // namespace sluice::backend::cuda::gemv_rows
