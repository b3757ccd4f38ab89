// norm_moe_gate_up of one row: what the files of its kernel share. The kernel (gemv_routed_kernel.cuh) is
// compiled for the types of routed experts in several files (one_row_experts_*.cu), so that none takes a
// compiler long.
#pragma once

#include "backend/cuda/moe/gemv_gated.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/router/select_block.cuh"

namespace sluice::backend::cuda::routed {

inline constexpr int kFours = 4;                  // of four columns, in a lane's registers
inline constexpr int kStretch = kFours * 4 * 32;  // columns of a router's row that a warp takes

/// A router's parts on the mailbox at most: words [stretch][logit].
inline constexpr int kMostParts = 2016;

struct Router {
  const float *weights, *norm, *bias, *logit_bias;  // weights: [experts][columns]; one bias is null
  const float* shared;  // null, or [columns] of one logit more: the share of the shared experts
  float epsilon;
  BlockRule rule;
  Mailbox mailbox;
  int stretches;  // of a row
  int32_t* ids;
  float* expert_weights;
  uint64_t* selected;              // null, or where the ids are left, too
  const unsigned long long* sums;  // null: this launch multiplies the router
  unsigned long long* clear;

  SLUICE_BOTH int logits() const { return rule.experts + (shared != nullptr ? 1 : 0); }
};

struct Args {
  GatedPlanes shared, routed;
  Router router;
  const float* in;
  int columns, blocks, lanes;  // blocks: of a row
  int shared_warps;            // of the launch
  int early;                   // thread blocks that begin while the kernel before is at work
};

/// Starts the kernel for routed experts of type Routed and shared ones of this type: shape says how many
/// thread blocks at most. False: files do not mix these.
template <Type Routed>
bool launch_routed(const Context& context, Type shared, Args args, LaunchShape shape);

}  // namespace sluice::backend::cuda::routed
