// The kernel of a mixture of two rows: row_mixture (gemv_mixture_kernel.cuh) with a pair of a row and an
// expert in the place of an expert, as rows_routed (gemv_rows_kernel.cuh) has them. Each of the two warps of
// an output takes a row of the step with its experts. For the norm_matmul behind, the sums are left in codes,
// too (gemv/norm_matmul_q8.h).
#pragma once

#include "backend/cuda/moe/gemv_mixture_kernel.cuh"
#include "backend/cuda/moe/gemv_rows_kernel.cuh"

namespace sluice::backend::cuda::mixture {

/// The weights of what the warps that call it have selected, of each row. factors: of the norm, which a
/// softmax was selected before.
__device__ inline void weigh_rows(const gemv_rows::Args& args, int rows, int expert,
                                  const float (&logits)[gemv_rows::kRows], const float* factors,
                                  BlockSelection (&selection)[gemv_rows::kRows], float (*weights)[32]) {
  const int used = args.rule.used;
  if (!args.rule.sigmoid) {
#pragma unroll 1
    for (int r = 0; r < gemv_rows::kRows && expert < used; ++r) selection[r].logits[expert] *= factors[r];
    sync_selecting(args.rule);
  }
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    const float weight = weigh_block(args.rule, expert, r == 0 ? logits[0] : logits[1], selection[r]);
    if (expert >= used) continue;
    weights[r][expert] = weight;
    if (blockIdx.x == 0) args.ids(r)[expert] = selection[r].ids[expert], args.weights(r)[expert] = weight;
  }
}

/// The lane's part of an output: a row's inputs times the experts' rows and the shared ones' of a stage each.
template <Type OfDown, Type OfSharedDown>
__device__ __forceinline__ float multiply_staged(const RowsArgs& args, const uint8_t* stage,
                                                 const uint8_t* shared_stage, const Activations& inputs,
                                                 int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = row * args.of_row;
  const CodePlanes staged = args.down.stage.planes(stage),
                   shared = args.down.shared_stage.planes(shared_stage);
  float sum = 0;
#pragma unroll 2
  for (int b = lane; b < args.routed_blocks; b += 32)
    sum += multiply<OfDown>(load_block<OfDown>(staged, b, FromShared{}), inputs.block(0, first + b));
#pragma unroll 1
  for (int b = lane; b < args.down.shared_blocks; b += 32)
    sum += multiply<OfSharedDown>(load_block<OfSharedDown>(shared, b, FromShared{}),
                                  inputs.block(0, first + args.routed_blocks + b));
  return sum;
}

/// Asks for output n of `count` experts' down projections, the warp together. Returns a half that is put once
/// the copies are there (ask_halves).
__device__ inline uint32_t ask_for_stage(const Down& down, uint8_t* stage, const int32_t* ids, int count,
                                         int n) {
  if (count == 0) return 0;
  const auto row_of = [&](int i) { return down.first_row + ids[i] * down.matrix_rows + n; };
  copy_all(stage, down.copy, down.planes, count, row_of);
  return down.copy.super.piece == 2 ? ask_halves(down.copy.super, down.planes.super, count, row_of) : 0;
}

/// The norm behind's weight of the column that this thread leaves.
__device__ inline float norm_of_column(const NormedQ8Rows& to, int first) {
  return to.codes != nullptr ? __ldg(to.norm + first + static_cast<int>(threadIdx.x) % kOutputs) : 0.0f;
}

/// leave_normed of the rows that a thread block has made, from column `first` on.
__device__ inline void leave_rows(const NormedQ8Rows& to, int first,
                                  const float (&made)[gemv_rows::kRows][kOutputs], float norm, int rows) {
  static_assert(kOutputs == NormedQ8Rows::kScaled);
  const int row = static_cast<int>(threadIdx.x) / kOutputs, n = static_cast<int>(threadIdx.x) % kOutputs;
  if (row < gemv_rows::kRows) leave_normed(to, row, first + n, made[row][n], norm, row < rows);
}

/// All blocks are on the device at a time, one an SM.
template <Type Routed, Type Shared, Type OfDown, Type OfSharedDown>
__global__ void __launch_bounds__(kThreads, 1)
    rows_mixture(const Timestamps timestamps, const __grid_constant__ RowsArgs args) {
  using gemv_rows::kRows, gemv_rows::sum_of;
  static_assert(kRows == kWarps / kOutputs);
  __shared__ __align__(16) float partial[kRows * kWarps];
  __shared__ BlockSelection selection[kRows];
  __shared__ float weights[kRows][32], made[kRows][kOutputs], of_norm[kRows];
  const PdlLink pdl(timestamps);
  const gemv_rows::Args& gated = args.gated;
  const Down& down = args.down;
  const BlockRule& rule = gated.rule;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x),
            warp = warp_of_launch(), lane = static_cast<int>(threadIdx.x) % 32,
            in_block = static_cast<int>(threadIdx.x) / 32;
  const Activations x{0, kRows * gated.columns, true, false};
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(x.columns, true, false)));
  fetch_norm_of_rows<kRows, kThreads>(norm, gated.norm, gated.columns);
  const int rows = *gated.rows;  // uploaded before the step's first kernel: no wait
  const uint32_t flag = gated.mailbox.flag();
  const int used = rule.used, routed_blocks = args.routed_blocks, of_row = args.of_row;
  const auto put_slots = [&](float* out, int64_t row_stride, int first, int row, int at, float value) {
    PutSlots{out + row * row_stride, gated.mailbox.slots, row * args.of_row * 32 + first,
             kRows * 4 * args.of_row, flag}(at, value);
  };
  // The block's warps of the shared matrix are its first, those that select its last.
  const int of_shared = (gated.shared_warps - block + blocks - 1) / blocks;
  const int from_last = kWarps - 1 - in_block;
  const bool selects = from_last < rule.warps;
  const int expert = from_last * 32 + lane;
  float logits[kRows] = {}, squares[kRows], factors[kRows];
  if (warp < gated.shared_warps) {
    Walk<Shared, kRows> walk(gated.shared, gated.blocks, gated.lanes, warp, gated.shared_warps);
    walk.set_slots(rows);  // every row's own product: the second reads the matrix from L2
    walk.begin();
    pdl.wait();
    wait_for_copies();
    float shares[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (gated.has_shares && r < rows) shares[r] = sum_of(gated, r, rule.experts);
    quantize_rows<kRows, kThreads>(x, gated.in, rows, norm, squares);
    reduce_for_norms<kRows, kWarps>(squares, partial, gated.columns, gated.epsilon, factors);
#pragma unroll
    for (int r = 0; r < kRows; ++r) shares[r] = gated.has_shares ? sigmoid(factors[r] * shares[r]) : 1.0f;
    walk.run_rows_to(
        x, 1, [&](int row) { return walk.of_row(factors, row); },
        [&](int row, int at, float value) {
          put_slots(gated.shared.out, gated.shared_stride, routed_blocks * 32, row, at,
                    value * walk.of_row(shares, row));
        });
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");  // the ids
  } else {
    const int known = min(expert, rule.experts - 1);
    float bias = 0;
    if (selects && gated.bias != nullptr) bias = __ldg(gated.bias + known);
    if (expert < kRows) selection[expert].count = 0;
    pdl.wait();
    if (selects) {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < rows) logits[r] = sum_of(gated, r, known);
    }
    if (from_last == rule.warps) clear_sums(gated.clear, gated.logits());
    wait_for_copies();
    // A softmax has the same order before the norm's factor, which is positive.
    const bool unscaled = !rule.sigmoid;
    if (selects && unscaled) select_block(rule, expert, logits, bias, selection);
    quantize_rows<kRows, kThreads>(x, gated.in, rows, norm, squares);
    reduce_for_norms<kRows, kWarps>(squares, partial, gated.columns, gated.epsilon, factors);
    if (selects) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) logits[r] *= factors[r];
#pragma unroll
      for (int r = 0; r < kRows; ++r) of_norm[r] = factors[r];
      if (!unscaled) select_block(rule, expert, logits, bias, selection);
    }
    routed::sync_warps(kWarps - of_shared);
    Walk<Routed, kRows> walk(gated.routed, gated.blocks, gated.lanes, warp - gated.shared_warps,
                             blocks * kWarps - gated.shared_warps);
    walk.set_slots(rows * used);
    static_assert(kRows == 2);
    walk.expert = selection[lane < used ? 0 : 1].ids[lane < used ? lane : lane - used];
    walk.begin();
    if (of_shared > 0) asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
    walk.run_rows_to(
        x, used, [&](int row) { return of_norm[row]; },
        [&](int row, int at, float value) {
          put_slots(gated.routed.out, gated.routed_stride, 0, row, at, value);
        });
    if (selects) weigh_rows(gated, rows, expert, logits, of_norm, selection, weights);
  }
  if (block * kOutputs >= down.rows) return;
  const int own = in_block % kOutputs, row = in_block / kOutputs;  // row: of the step
  const bool there = row < rows;
  const int n = min(block * kOutputs + own, down.rows - 1);  // the last one's again
  uint8_t* const stages = reinterpret_cast<uint8_t*>(dynamic_shared(down.staged_at));
  uint8_t* const stage = stages + in_block * down.stage.bytes;
  uint8_t* const shared_stage = stages + kWarps * down.stage.bytes + own * down.shared_stage.bytes;
  const uint32_t half = ask_for_stage(down, stage, selection[row].ids, there ? used : 0, n);
  if (row == 0 && down.shared_blocks > 0)
    copy_all(shared_stage, down.shared_copy, down.shared_planes, 1, [&](int) { return down.shared_row + n; });
  const float residual = there && lane == 0 ? load_result(down.residual(row) + n) : 0.0f;
  const float norm_behind = norm_of_column(args.coded, block * kOutputs);
  const Activations inputs{down.codes_at, kRows * of_row * 32, true, false};
  __syncthreads();  // the weights
  take_inputs<kRows>(down, used, rows, gated.mailbox, inputs, weights[0], flag);
  if (there && down.copy.super.piece == 2 && lane < used * down.copy.super.pieces)
    reinterpret_cast<uint16_t*>(stage + down.copy.super.at)[lane] = static_cast<uint16_t>(half);
  wait_for_copies();
  __syncthreads();
  if (there) {
    const float sum =
        lane_sum(multiply_staged<OfDown, OfSharedDown>(args, stage, shared_stage, inputs, row)) + residual;
    if (lane == 0) down.out(row)[n] = sum, made[row][own] = sum;
  }
  if (args.coded.codes == nullptr) return;
  __syncthreads();
  leave_rows(args.coded, block * kOutputs, made, norm_behind, rows);
}

template <Type Routed>
bool launch_mixture(const Context& context, Type shared, Type down, Type shared_down, const RowsArgs& args,
                    const LaunchShape& shape) {
  return with_mixture_types<Routed>(
      shared, down, shared_down, [&]<Type Shared, Type OfDown, Type OfSharedDown>() {
        launch(context, rows_mixture<Routed, Shared, OfDown, OfSharedDown>, shape, args);
      });
}

}  // namespace sluice::backend::cuda::mixture
