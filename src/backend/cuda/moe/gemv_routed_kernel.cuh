// The kernel of norm_moe_gate_up of one row. Some warps multiply stretches of the router's rows and leave the
// parts on the mailbox; then every thread block takes all parts and selects for itself, while warps of the
// shared matrix are at work. That costs a trip through L2 instead of a launch. A SM has room for one block
// beside those of the kernel before, so half of the blocks begin late: the router is for the early ones.
#pragma once

#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/gemv_routed.cuh"

namespace sluice::backend::cuda::routed {

inline constexpr int kRouting = 2;  // warps of a block that multiply the router

/// Stretches of the router's rows that a warp takes, one after another.
struct RouterPart {
  /// A stretch of the router and of the norm's weights.
  struct Stage {
    float router[kStretch], norm[kStretch];
  };
  const Args& args;
  Stage& stage;  // shared memory of this warp
  const int stride;
  int task, logit, first;  // first: column of the stretch

  /// at, of: this warp's number and how many there are. Asks for the first stretch.
  __device__ RouterPart(const Args& all, Stage& own, int at, int of)
      : args(all), stage(own), stride(of), task(at) {
    fetch();
  }
  __device__ bool done() const { return task >= args.router.logits() * args.router.stretches; }
  __device__ void fetch() {
    if (done()) return;
    logit = task / args.router.stretches;
    first = (task - logit * args.router.stretches) * kStretch;
    const float* const row = logit < args.router.rule.experts
                                 ? args.router.weights + int64_t{logit} * args.columns
                                 : args.router.shared;
#pragma unroll 1
    for (int c = 4 * (static_cast<int>(threadIdx.x) % 32); c < min(kStretch, args.columns - first);
         c += 128) {
      copy_async(stage.router + c, row + first + c);
      copy_async(stage.norm + c, args.router.norm + first + c);
    }
  }
  /// Leaves the parts on the mailbox: word [stretch][logit].
  __device__ void run(uint32_t flag) {
    const Router& r = args.router;
#pragma unroll 1
    while (!done()) {
      const int lane = static_cast<int>(threadIdx.x) % 32, last = args.columns - first - 4;
      float4 x[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        x[i] = load_four(reinterpret_cast<const float4*>(args.in + first + min((i * 32 + lane) * 4, last)));
      wait_for_copies();
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int c = (i * 32 + lane) * 4;
        const float4 w = *reinterpret_cast<const float4*>(stage.router + c);
        const float4 n = *reinterpret_cast<const float4*>(stage.norm + c);
        const float part =
            (x[i].x * n.x * w.x + x[i].y * n.y * w.y) + (x[i].z * n.z * w.z + x[i].w * n.w * w.w);
        if (c <= last) sum += part;
      }
      sum = lane_sum(sum);
      if (lane == 0) put_slot(r.mailbox.slots + first / kStretch * r.logits() + logit, sum, flag);
      task += stride;
      fetch();  // where there is one: each lane reads what it fetched itself
    }
  }
};

/// What a thread block selects.
struct Selection {
  int32_t ids[32];
  float bias[32 * kMostEach], parts[kMostParts];
};

/// Asks for the biases; they are there after wait_for_copies.
__device__ inline void fetch_biases(const Router& r, Selection& s) {
  const float* const bias = r.bias != nullptr ? r.bias : r.logit_bias;
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) % 32; e < r.rule.experts && bias != nullptr; e += 32)
    copy_async_four(s.bias + e, bias + e);
}

/// A logit that the launch before has left.
__device__ inline float sum_of(const Router& r, int logit) {
  long long sum = 0;
#pragma unroll
  for (int i = 0; i < RouterSums::kCopies; ++i)
    sum += static_cast<long long>(__ldcg(r.sums + i * r.logits() + logit));
  return static_cast<float>(sum) * (1.0f / RouterSums::kOne);
}

/// Takes those of the experts. A whole warp calls it.
__device__ inline void take_sums(const Router& r, Selection& s) {
#pragma unroll 2
  for (int e = static_cast<int>(threadIdx.x) % 32; e < r.rule.experts; e += 32) s.parts[e] = sum_of(r, e);
}

/// The shared experts' logit from the mailbox, before the norm's factor.
__device__ inline float take_shared_logit(const Router& r) {
  float sum = 0;
#pragma unroll 1
  for (int p = 0; p < r.stretches; ++p)
    sum += take_slot(r.mailbox.slots + p * r.logits() + r.rule.experts, r.mailbox.flag());
  return sum;
}

/// factor: of the norm. The first block's selection is the op's. A whole warp calls it.
template <bool kBiased>
__device__ inline void select(const Router& r, uint32_t flag, float factor, Selection& s) {
  const int experts = r.rule.experts, lane = static_cast<int>(threadIdx.x) % 32;
  if (r.sums == nullptr) take_slots(r.mailbox.slots, r.logits() * r.stretches, flag, s.parts);
  with_experts_of_lane(experts, [&]<int kEach>() {
    float scores[kEach] = {};
#pragma unroll 1
    for (int p = 0; p < r.stretches; ++p) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) scores[i] += s.parts[p * r.logits() + min(lane + 32 * i, experts - 1)];
    }
#pragma unroll
    for (float& score : scores) score *= factor;
    if constexpr (kBiased) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        scores[i] += r.logit_bias != nullptr ? s.bias[min(lane + 32 * i, experts - 1)] : 0.0f;
    }
    int id;
    float weight;
    route_lanes(r.rule, scores, r.bias != nullptr ? s.bias : nullptr, id, weight);
    if (lane >= r.rule.used) return;
    s.ids[lane] = id;
    if (blockIdx.x != 0) return;
    if (r.selected != nullptr) put_slot(r.selected + lane, __int_as_float(id), flag);
    r.ids[lane] = id, r.expert_weights[lane] = weight;
  });
}

/// Named barrier 1: for the warps of a block that share it.
__device__ inline void sync_warps(int warps) { asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory"); }
/// Until the block's routing warps have put their slots. Everything waits for those in the end, so nobody
/// else takes turns from these warps meanwhile.
__device__ inline void sync_after_slots() { asm volatile("bar.sync 2, %0;" ::"n"(kGemvThreads) : "memory"); }

/// A warp takes rows of the shared matrix or of experts, never both. All blocks are on the device at a time.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kGemvThreads, 2)
    row_routed(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kGemvWarps];
  __shared__ __align__(16) RouterPart::Stage stages[kRouting];
  __shared__ Selection selection;
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x),
            warp = warp_of_launch();
  const Activations x{0, args.columns, true, false};
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
  fetch_norm(norm, args.router.norm, args.columns);
  const bool multiplies_router = args.router.sums == nullptr;
  const auto others_wait = [&] {
    if (multiplies_router && block < args.early) sync_after_slots();
  };
  if (warp < args.shared_warps) {
    Walk<Shared> walk(args.shared, args.blocks, args.lanes, warp, args.shared_warps);
    walk.begin();
    pdl.wait();
    wait_for_copies();
    const bool shares = args.router.shared != nullptr;
    float logit = 0;
    const float squares = quantize_row(x, args.in, norm, [&] {
      others_wait();
      if (shares && !multiplies_router) logit = sum_of(args.router, args.router.rule.experts);
    });
    const float factor = reduce_for_norm(squares, partial, args.columns, args.router.epsilon);
    if (shares && multiplies_router) logit = take_shared_logit(args.router);
    const float share = shares ? sigmoid(factor * logit) : 1.0f;
    walk.run(x, factor, share);
    return;
  }
  const int from_last = kGemvWarps - 1 - static_cast<int>(threadIdx.x) / 32;
  const uint32_t flag = args.router.mailbox.flag();
  if (from_last == 0) fetch_biases(args.router, selection);
  const bool routes = multiplies_router && from_last < kRouting && block < args.early;
  if (routes) {
    RouterPart part(args, stages[from_last], from_last * args.early + block, kRouting * args.early);
    pdl.wait();
    part.run(flag);
    sync_after_slots();
  } else {
    pdl.wait();
    if (!multiplies_router && from_last == 0) take_sums(args.router, selection);
  }
  if (from_last == 1) clear_sums(args.router.clear, args.router.logits());
  wait_for_copies();
  const float squares = quantize_row(x, args.in, norm, [&] {
    if (!routes) others_wait();
  });
  const float factor = reduce_for_norm(squares, partial, args.columns, args.router.epsilon);
  if (from_last == 0) select<takes_biases(Routed)>(args.router, flag, factor, selection);
  // The block's warps of the shared matrix are its first.
  sync_warps(kGemvWarps - (args.shared_warps - block + blocks - 1) / blocks);
  Walk<Routed> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                    warps_of_launch() - args.shared_warps);
  walk.take_ids(selection.ids);
  walk.begin();
  walk.run(x, factor);
}

/// Blocks of a launch that the device holds at a time.
template <typename Kernel>
unsigned blocks_at_once(const Context& context, Kernel* kernel, const LaunchShape& shape) {
  int each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kGemvThreads,
                                                      static_cast<size_t>(shape.shared_bytes)));
  return static_cast<unsigned>(each * context.sm_count);
}

template <Type Routed>
bool launch_routed(const Context& context, Type shared, Args args, LaunchShape shape) {
  return with_second_type<Routed>(shared, [&]<Type, Type Shared>() {
    const auto kernel = row_routed<Routed, Shared>;
    // Blocks wait for each other.
    shape.grid.x = std::min(shape.grid.x, blocks_at_once(context, kernel, shape));
    const auto blocks = static_cast<int>(shape.grid.x);
    args.early = std::min(context.sm_count, blocks);
    // Warps by work; those that route are not the shared matrix's.
    const int64_t shared_tasks = int64_t{args.shared.slots} * args.shared.tasks;
    const int64_t tasks = shared_tasks + int64_t{args.routed.slots} * args.routed.tasks;
    args.shared_warps = static_cast<int>((blocks * kGemvWarps * shared_tasks + tasks - 1) / tasks);
    args.shared_warps = std::min(args.shared_warps, blocks * (kGemvWarps - kRouting));
    launch(context, kernel, shape, args);
  });
}

}  // namespace sluice::backend::cuda::routed
