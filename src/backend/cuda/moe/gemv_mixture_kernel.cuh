// The kernel of a mixture of one row, and what that of two (gemv_mixture_rows_kernel.cuh) shares with it. It
// is row_routed (gemv_routed_kernel.cuh) up to the experts' gated products, whose results go to flagged
// slots. A warp that has no more of them asks for its row of each expert's down projection, to shared memory;
// then every thread block takes all slots, quantises them, and multiplies. So the down projections' weights
// come while other warps are still at work, and the only wait is for the slots: a launch of its own would
// begin when the last block has ended.
#pragma once

#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/moe/gemv_mixture.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda::mixture {

/// Where the slot of number `at` lies: a thread takes eight neighbouring numbers, four times two of them.
__device__ inline int slot_of(int at, int pieces) { return (at % 8 / 2 * pieces + at / 8) * 2 + at % 2; }

/// Puts results in their slots, and where the op wants them. first: the number of out's first.
struct PutSlots {
  float* out;
  uint64_t* slots;
  int first, pieces;
  uint32_t flag;

  __device__ void operator()(int at, float value) const {
    put_slot(slots + slot_of(first + at, pieces), value, flag);
    out[at] = value;
  }
};

/// Waits for the eight numbers of a piece, where it is wanted.
__device__ inline void take_eight(const uint64_t* slots, int piece, int pieces, bool wanted, uint32_t flag,
                                  float (&v)[8]) {
  uint32_t low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) low[i] = 0, high[i] = wanted ? ~flag : flag;
  bool all;
#pragma unroll 1
  do {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      asm volatile(
          "{\n .reg .pred p, q;\n setp.ne.u32 p, %1, %5;\n setp.ne.or.u32 q, %3, %5, p;\n"
          " @q ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "+r"(low[i]), "+r"(high[i]), "+r"(low[i + 1]), "+r"(high[i + 1])
          : "l"(slots + slot_of(8 * piece + i, pieces)), "r"(flag)
          : "memory");
    }
    all = true;
#pragma unroll
    for (const uint32_t one : high) all &= one == flag;
  } while (!all);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(low[i]);
}

/// Takes the inputs of moe_down_add, the first `rows` of kRows rows, from their slots to the blocks of x, the
/// thread block together. An expert's weight becomes part of its activations' scales, so that an output is
/// one long sum. weights: [row][32].
template <int kRows>
__device__ inline void take_inputs(const Down& down, int used, int rows, const Mailbox& mailbox,
                                   const Activations& x, const float* weights, uint32_t flag) {
  const int pieces = x.columns / 8, of_row = pieces / kRows, count = rows * of_row;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at / 32 * 32 < count; at += kThreads) {
    const bool valid = at < count;
    float v[8];
    take_eight(mailbox.slots, min(at, count - 1), pieces, valid, flag, v);
    const int row = part_of<kRows>(at, of_row), block = (at - row * of_row) / 4;
    put_eight(x, at, valid, v, block < used * down.blocks ? weights[row * 32 + block / down.blocks] : 1.0f);
  }
}

/// Copies the same plane of `count` rows to a stage, the lanes of a warp together. row_of: of the weights.
template <typename RowOf>
__device__ inline void copy_plane(uint8_t* stage, const PlaneCopy& plane, const uint8_t* weights, int count,
                                  RowOf&& row_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int at = lane; at < count * plane.pieces; at += 32) {
    const int i = plane.row_of(at);
    const int place = (at - i * plane.pieces) * plane.piece;
    const uint8_t* const from = weights + int64_t{row_of(i)} * plane.bytes + place;
    uint8_t* const to = stage + plane.at + i * plane.bytes + place;
    if (plane.piece == 16)
      copy_async(to, from);
    else
      copy_async_four(to, from);
  }
}
/// The same of a plane whose rows are no whole words, of one half a lane: copied once it is put.
template <typename RowOf>
__device__ inline uint32_t ask_halves(const PlaneCopy& plane, const uint8_t* weights, int count,
                                      RowOf&& row_of) {
  const int at = min(static_cast<int>(threadIdx.x) % 32, count * plane.pieces - 1);
  const int i = plane.row_of(at);
  return load_weight(reinterpret_cast<const uint16_t*>(weights + int64_t{row_of(i)} * plane.bytes) + at -
                     i * plane.pieces);
}
template <typename RowOf>
__device__ inline void copy_all(uint8_t* stage, const StageCopy& copy, const CodePlanes& weights, int count,
                                RowOf&& row_of) {
  copy_plane(stage, copy.codes, weights.codes, count, row_of);
  copy_plane(stage, copy.high, weights.high, count, row_of);
  copy_plane(stage, copy.scale, weights.scale, count, row_of);
  if (copy.super.piece > 2) copy_plane(stage, copy.super, weights.super, count, row_of);
}

/// The same, half a warp a row, whose planes it copies one after another. Of the experts of one row it is
/// quicker, of two slower (H200, Qwen3-30B-A3B in Q4_K_M: 678 -> 694, 975 -> 957 tokens/s).
template <typename RowOf>
__device__ inline void copy_by_rows(uint8_t* stage, const StageCopy& copy, const CodePlanes& weights,
                                    int count, RowOf&& row_of) {
  constexpr int kLanes = 16;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32 / kLanes; i < count; i += 32 / kLanes) {
    const int64_t row = row_of(i);
    const auto copy_plane = [&](const PlaneCopy& plane, const uint8_t* planes) {
      const uint8_t* const from = planes + row * plane.bytes;
      uint8_t* const to = stage + plane.at + i * plane.bytes;
#pragma unroll 1
      for (int at = lane * plane.piece; at < plane.bytes; at += kLanes * plane.piece) {
        if (plane.piece == 16)
          copy_async(to + at, from + at);
        else
          copy_async_four(to + at, from + at);
      }
    };
    copy_plane(copy.codes, weights.codes);
    copy_plane(copy.high, weights.high);
    copy_plane(copy.scale, weights.scale);
    if (copy.super.piece > 2) copy_plane(copy.super, weights.super);
  }
}

/// All blocks are on the device at a time, one an SM.
template <Type Routed, Type Shared, Type OfDown, Type OfSharedDown>
__global__ void __launch_bounds__(kThreads, 1)
    row_mixture(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kWarps];
  __shared__ BlockSelection selection[1];
  __shared__ float weights[32], others[kOutputs];
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x),
            warp = warp_of_launch(), lane = static_cast<int>(threadIdx.x) % 32,
            in_block = static_cast<int>(threadIdx.x) / 32;
  const Activations x{0, args.columns, true, false};
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
  const routed::Router& router = args.router;
  const Down& down = args.down;
  fetch_norm<kThreads>(norm, router.norm, args.columns);
  const uint32_t flag = router.mailbox.flag();
  const int used = router.rule.used, pieces = (used * down.blocks + down.shared_blocks) * 4;
  // The block's warps of the shared matrix are its first, those that select its last.
  const int of_shared = (args.shared_warps - block + blocks - 1) / blocks;
  const int from_last = kWarps - 1 - in_block;
  const bool selects = from_last < router.rule.warps;
  const int expert = from_last * 32 + lane;
  float logit[1] = {};
  if (warp < args.shared_warps) {
    Walk<Shared> walk(args.shared, args.blocks, args.lanes, warp, args.shared_warps);
    walk.begin();
    pdl.wait();
    wait_for_copies();
    const bool shares = router.shared != nullptr;
    float of_shares = 0;
    if (shares) of_shares = routed::sum_of(router, router.rule.experts);
    const float squares = quantize_row<kThreads>(x, args.in, norm, [] {});
    const float factor = reduce_for_norm<kWarps>(squares, partial, args.columns, router.epsilon);
    const float share = shares ? sigmoid(factor * of_shares) : 1.0f;
    walk.run_to(x, factor, share,
                PutSlots{args.shared.out, router.mailbox.slots, used * down.blocks * 32, pieces, flag});
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");  // the ids
  } else {
    const int known = min(expert, router.rule.experts - 1);
    float bias = 0;
    if (selects && router.bias != nullptr) bias = __ldg(router.bias + known);
    if (expert == 0) selection[0].count = 0;
    pdl.wait();
    if (selects) logit[0] = routed::sum_of(router, known);
    if (from_last == router.rule.warps) clear_sums(router.clear, router.logits());
    wait_for_copies();
    // A softmax has the same order before the norm's factor, which is positive.
    const bool unscaled = !router.rule.sigmoid;
    if (selects && unscaled) select_block(router.rule, expert, logit, bias, selection);
    const float squares = quantize_row<kThreads>(x, args.in, norm, [] {});
    const float factor = reduce_for_norm<kWarps>(squares, partial, args.columns, router.epsilon);
    if (selects) {
      logit[0] *= factor;
      if (!unscaled) select_block(router.rule, expert, logit, bias, selection);
    }
    routed::sync_warps(kWarps - of_shared);
    Walk<Routed> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                      blocks * kWarps - args.shared_warps);
    walk.take_ids(selection[0].ids);
    walk.begin();
    if (of_shared > 0) asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
    walk.run_to(x, factor, 1.0f, PutSlots{args.routed.out, router.mailbox.slots, 0, pieces, flag});
    if (selects) {
      if (unscaled) {
        if (expert < used) selection[0].logits[lane] *= factor;
        sync_selecting(router.rule);
      }
      const float weight = weigh_block(router.rule, expert, logit[0], selection[0]);
      if (expert < used) weights[lane] = weight;
      if (expert < used && block == 0) {
        router.ids[lane] = selection[0].ids[lane];
        router.expert_weights[lane] = weight;
      }
    }
  }
  if (block * kOutputs >= down.rows) return;
  const int own = in_block % kOutputs;
  const bool fetches = in_block >= kOutputs;
  const int n = min(block * kOutputs + own, down.rows - 1);  // the last one's again
  uint8_t* const stage = reinterpret_cast<uint8_t*>(dynamic_shared(down.staged_at)) +
                         own * (down.stage.bytes + down.shared_stage.bytes);
  uint8_t* const shared_stage = stage + down.stage.bytes;
  uint32_t half = 0;
  if (fetches) {
    const auto row_of = [&](int i) { return down.first_row + selection[0].ids[i] * down.matrix_rows + n; };
    copy_by_rows(stage, down.copy, down.planes, used, row_of);
    if (down.copy.super.piece == 2) half = ask_halves(down.copy.super, down.planes.super, used, row_of);
  } else if (down.shared_blocks > 0) {
    copy_all(shared_stage, down.shared_copy, down.shared_planes, 1, [&](int) { return down.shared_row + n; });
  }
  const float residual = !fetches && lane == 0 ? load_result(down.residual.data + n) : 0.0f;
  const int routed_blocks = used * down.blocks;
  const Activations inputs{down.codes_at, (routed_blocks + down.shared_blocks) * 32, true, false};
  // Whole turns of a warp to either; the shared ones are the first warp's.
  const int middle = min(routed_blocks, (routed_blocks / 2 + 31) / 32 * 32);
  const int begin = fetches ? middle : 0, end = fetches ? routed_blocks : middle;
  float sum = 0;
  __syncthreads();  // the weights
  take_inputs<1>(down, used, 1, router.mailbox, inputs, weights, flag);
  if (fetches && down.copy.super.piece == 2 && lane < used * down.copy.super.pieces)
    reinterpret_cast<uint16_t*>(stage + down.copy.super.at)[lane] = static_cast<uint16_t>(half);
  wait_for_copies();
  __syncthreads();
  const CodePlanes staged = down.stage.planes(stage);
#pragma unroll 2
  for (int b = begin + lane; b < end; b += 32)
    sum += multiply<OfDown>(load_block<OfDown>(staged, b, FromShared{}), inputs.block(0, b));
  if (!fetches) {
    const CodePlanes shared_row = down.shared_stage.planes(shared_stage);
#pragma unroll 1
    for (int b = lane; b < down.shared_blocks; b += 32)
      sum += multiply<OfSharedDown>(load_block<OfSharedDown>(shared_row, b, FromShared{}),
                                    inputs.block(0, routed_blocks + b));
  }
  sum = lane_sum(sum);
  if (fetches && lane == 0) others[own] = sum;
  __syncthreads();
  if (!fetches && lane == 0) down.out.data[n] = sum + others[own] + residual;
}

template <Type Routed>
bool launch_mixture(const Context& context, Type shared, Type down, Type shared_down, const Args& args,
                    const LaunchShape& shape) {
  return with_mixture_types<Routed>(
      shared, down, shared_down, [&]<Type Shared, Type OfDown, Type OfSharedDown>() {
        launch(context, row_mixture<Routed, Shared, OfDown, OfSharedDown>, shape, args);
      });
}

}  // namespace sluice::backend::cuda::mixture
