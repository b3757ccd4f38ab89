// Products of experts with few tokens each, activations in eight bits (moe/experts_small_batch.cu).
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/router/route.cuh"

namespace sluice::backend::cuda {

/// How a row's experts are selected, from logits on the mailbox, and where the selection is left: in words
/// with the same flag, too, one a pair.
struct RowSelection {
  RouteRule rule;
  const float* bias;
  Rows<int32_t> ids;
  Rows<float> weights;
  Mailbox mailbox;
  uint64_t* selected;
  const uint64_t* shares;  ///< null, or a logit a row: by how much the shared experts count
};

/// Gates and ups of up to 8 rows select for themselves (and for all that is behind) and multiply the shared
/// experts. The slot at kPackedSlots + row says that a row's packed tokens and codes are
/// written and that its `taken` is zero.
struct SelectAndShared {
  RowSelection selection;
  SharedGateUp shared;
};

/// out(r, k) = weight[ids(r, k)] times in(r), or in(r, k) (by_pair); or silu of that, times the same with up
/// (gated). Rows from *rows on are padding.
struct ExpertsSmallBatch {
  Matrix weight, up;
  bool gated, by_pair;
  Rows<float> in, out;
  Rows<int32_t> ids;  ///< data null: all are the first, of columns experts a row
  const int32_t* rows;
  /// The rows as codes already, as experts_token lays them out, or null.
  const char* coded = nullptr;
  /// Zero, or null: how many items warps have taken beyond their first.
  unsigned* taken = nullptr;
  Mailbox selection{};  ///< where the selection was left, a word a pair, or null: in ids
  const SelectAndShared* select_and_shared = nullptr;  ///< or null (takes_shared_experts)
  /// Rows of one matrix that are packed beside, for a launch behind this one: whole chunks of aligned columns
  /// (packs_beside), not where gated.
  PackPlan beside{};
};

/// Pairs whose selection is left in words at most.
inline constexpr int kMostSelected = 1024;
/// Where on the mailbox norm_moe_gate_up of some rows has: that a row is packed (of up to 8), the selection
/// where no launch behind takes it, and the router's logits, of each expert and row.
inline constexpr int kPackedSlots = 0, kSelectionSlots = 32, kLogitsSlots = kSelectionSlots + kMostSelected;

/// The selection of some rows as norm_moe_gate_up gives it (Form::SelectedExperts): a word a pair.
std::optional<FormSpec> given_selection(const program::Program& program, program::TensorId ids,
                                        const Sizes& sizes);

/// Leaves the logits of a step's rows on the launch's mailbox, from kLogitsSlots on: the experts' of all
/// rows, and behind them those of the shared experts where they have a router.
void leave_logits(const program::NormMoeGateUp& op, const Context& context);
/// Slots that logits begin at and take. rows: of the step.
inline int64_t shared_logits_at(int64_t rows, int64_t experts) { return kLogitsSlots + rows * experts; }
inline int64_t slots_of_logits(int64_t rows, int64_t experts) {
  return shared_logits_at(rows, experts) + rows;
}

/// Experts' weights as far as binding sees them.
struct ExpertsShape {
  quant::Type type;
  int64_t experts, outputs, columns;
  int64_t used;  ///< experts a row
  bool gated;
};

/// How it wants rows in codes that experts of this type multiply.
int8_mma::TokenRows experts_token(quant::Type type, int64_t columns);
/// Whether multiply_experts_small_batch takes these: steps of a few tokens an expert.
bool serves_experts_small_batch(const ExpertsShape& shape, int64_t rows, int architecture);
/// Whether it multiplies shared experts of this type, [outputs][shape's columns], beside, where there are
/// `coded` and `taken`.
bool takes_shared_experts(const ExpertsShape& shape, quant::Type type, int64_t outputs, const Sizes& sizes);
void multiply_experts_small_batch(const ExpertsSmallBatch& product, const Context& context);

inline bool packs_beside(const Rows<float>& in) {
  return in.columns % kChunkColumns == 0 && in.row_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(in.data) % 16 == 0;
}

}  // namespace sluice::backend::cuda
