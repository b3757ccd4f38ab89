// norm_moe_gate_up of two rows: what the files of its kernel share. The kernel (gemv_rows_kernel.cuh) is
// compiled for the types of routed experts in several files (gemv_rows_*.cu).
#pragma once

#include "backend/cuda/moe/gemv_gated.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/router/select_block.cuh"

namespace sluice::backend::cuda::gemv_rows {

struct Args {
  GatedPlanes shared, routed;
  int64_t shared_stride, routed_stride;  // of results, elements from row to row
  Rows<float> in;
  const int32_t* rows;
  const float *norm, *bias;
  float epsilon;
  BlockRule rule;
  Rows<int32_t> ids;
  Rows<float> weights;
  Mailbox mailbox;                 // has the logits from kLogitsSlots on where there are no sums
  uint64_t* selected;              // null, or where the ids are left, too: a slot a pair
  const unsigned long long* sums;  // of the router, or null
  unsigned long long* clear;
  const uint64_t* shares;  // where there are no sums: the shared experts' logits, a slot a row
  bool has_shares;
  int columns, blocks, lanes;  // blocks: of a row
  int shared_warps;            // of the launch

  SLUICE_BOTH int logits() const { return rule.experts + (has_shares ? 1 : 0); }
};

inline constexpr int kRows = RouterSums::kRows;

/// Starts the kernel for routed experts of type Routed and shared ones of this type. False: files do not mix
/// these.
template <Type Routed>
bool launch_rows(const Context& context, Type shared, const Args& args, const LaunchShape& shape);

/// Types of routed experts that are compiled.
constexpr bool is_compiled(Type routed) { return routed == Type::Q4_0 || routed == Type::Q4_K; }

}  // namespace sluice::backend::cuda::gemv_rows
