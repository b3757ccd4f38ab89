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

/// A logit that the launch before has left.
__device__ inline float sum_of(const Router& r, int logit) {
  long long sum = 0;
#pragma unroll
  for (int i = 0; i < RouterSums::kCopies; ++i)
    sum += static_cast<long long>(__ldcg(r.sums + i * r.logits() + logit));
  return static_cast<float>(sum) * (1.0f / RouterSums::kOne);
}

/// The shared experts' logit from the mailbox, before the norm's factor.
__device__ inline float take_shared_logit(const Router& r) {
  float sum = 0;
#pragma unroll 1
  for (int p = 0; p < r.stretches; ++p)
    sum += take_slot(r.mailbox.slots + p * r.logits() + r.rule.experts, r.mailbox.flag());
  return sum;
}

/// Leaves the selection and its weights for others. The warps that have selected call it.
__device__ __forceinline__ void leave_selection(const Router& r, int expert, float logit, uint32_t flag,
                                                BlockSelection& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32, used = r.rule.used;
  if (expert < used) {
    r.ids[lane] = s.ids[lane];
    if (r.selected != nullptr) put_slot(r.selected + lane, __int_as_float(s.ids[lane]), flag);
  }
  const float weight = weigh_block(r.rule, expert, logit, s);
  if (expert < used) r.expert_weights[lane] = weight;
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
  __shared__ BlockSelection selection[1];
  __shared__ float parts[kMostParts];  // of the router's products
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
  const Router& router = args.router;
  const int from_last = kGemvWarps - 1 - static_cast<int>(threadIdx.x) / 32;
  const uint32_t flag = router.mailbox.flag();
  // Of those that select, a lane's.
  const bool selects = from_last < router.rule.warps;
  const int expert = from_last * 32 + static_cast<int>(threadIdx.x) % 32;
  const int known = min(expert, router.rule.experts - 1);
  float logit[1] = {}, bias = 0;
  if (const float* const of = router.bias != nullptr ? router.bias : router.logit_bias;
      selects && of != nullptr)
    bias = __ldg(of + known);
  if (expert == 0) selection[0].count = 0;
  const bool routes = multiplies_router && from_last < kRouting && block < args.early;
  if (routes) {
    RouterPart part(args, stages[from_last], from_last * args.early + block, kRouting * args.early);
    pdl.wait();
    part.run(flag);
    sync_after_slots();
  } else {
    pdl.wait();
    if (!multiplies_router && selects) logit[0] = sum_of(router, known);
  }
  if (from_last == router.rule.warps) clear_sums(router.clear, router.logits());
  wait_for_copies();
  const float squares = quantize_row(x, args.in, norm, [&] {
    if (!routes) others_wait();
  });
  const float factor = reduce_for_norm(squares, partial, args.columns, args.router.epsilon);
  if (selects) {
    if (multiplies_router) {
      if (from_last == 0) take_slots(router.mailbox.slots, router.logits() * router.stretches, flag, parts);
      sync_selecting(router.rule);
#pragma unroll 1
      for (int p = 0; p < router.stretches; ++p) logit[0] += parts[p * router.logits() + known];
    }
    logit[0] *= factor;
    if constexpr (takes_biases(Routed))
      if (router.logit_bias != nullptr) logit[0] += bias;
    select_block(router.rule, expert, logit, bias, selection);
  }
  // The block's warps of the shared matrix are its first.
  sync_warps(kGemvWarps - (args.shared_warps - block + blocks - 1) / blocks);
  Walk<Routed> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                    warps_of_launch() - args.shared_warps);
  walk.take_ids(selection[0].ids);
  walk.begin();
  if (block == 0 && selects) leave_selection(router, expert, logit[0], flag, selection[0]);
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
    const int routing = std::max(kRouting, args.router.rule.warps + 1);
    args.shared_warps = std::min(args.shared_warps, blocks * (kGemvWarps - routing));
    launch(context, kernel, shape, args);
  });
}

}  // namespace sluice::backend::cuda::routed
