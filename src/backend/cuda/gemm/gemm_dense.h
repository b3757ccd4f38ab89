// Products of a step's rows with plain matrices and heads on tensor cores: what the ops of steps of many rows
// share. Activations are packed first (gemm/gemm_parts.h), then multiplied by whatever kernel suits their
// number.
#pragma once

#include "backend/cuda/gemm/gemm_parts.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/scratch.h"
#include "backend/cuda/prim/weight_fragments.cuh"
#include "program/program.h"

namespace sluice::backend::cuda {

/// Steps of more rows are GEMMs: from two on, rows share what is read of weights.
inline constexpr int64_t kNarrowRows = 1;

inline bool known(const program::Program& p, program::TensorId id) {
  Family family{};
  return family_of(p[id].type, family);
}
/// One kernel multiplies both: their codes are alike, their scales need not be.
inline bool alike(const program::Program& p, program::TensorId a, program::TensorId b) {
  Family one{}, other{};
  return family_of(p[a].type, one) && family_of(p[b].type, other) && one == other;
}

/// Tokens of a tile of warps.
int32_t tile_for(int64_t tokens);

struct Packed {
  uint16_t* data;
  float* scale;
};
inline Packed take_packed(Scratch& scratch, int64_t slots, int64_t columns) {
  return {scratch.take<uint16_t>(slots * padded_columns(columns)), scratch.take<float>(slots)};
}
inline Tokens tokens_of(const Packed& packed, int64_t columns) {
  return {packed.data, packed.scale, static_cast<int32_t>(padded_columns(columns) / kChunkColumns)};
}

inline int64_t whole_groups(int64_t rows) { return (rows + kGroupTokens - 1) / kGroupTokens * kGroupTokens; }

/// in as one head of all its columns: what lies without gaps counts as more columns.
inline Rows<float> flat(Rows<float> in) { return {in.data, in.row_stride, 0, 1, in.heads * in.columns}; }

inline const int32_t* count_of(const program::Program& p, program::TensorId id, const StepView& step) {
  return p[id].shape[0] == program::kOutputRows ? &step.header->outputs : &step.header->rows;
}

/// out = in times weight of every matrix (head); or gated; or plus bias and residual.
struct Dense {
  Rows<float> in, out;
  Matrix weight, up;
  bool gated = false;
  const float* residual = nullptr;
  int64_t residual_stride = 0;
  const float* bias = nullptr;
  int64_t rows;
  const int32_t* count;
};

/// Whether warpgroups multiply it: then tokens lie in n-tiles.
bool by_wgmma(const Dense& d);
/// Slots of a matrix's tokens: whole groups in n-tiles; otherwise no more than tiles take.
int64_t slots_per_matrix(int64_t rows, bool n_tiles);
PackPlan packing_of(const Dense& d, bool n_tiles, const Packed& packed);
/// The product of tokens that are packed.
void multiply_packed(const Dense& d, bool n_tiles, const Packed& packed, const Context& context);
/// The same, and the experts' results added to it in one launch; false: there is none for it, and nothing was
/// started.
bool multiply_and_combine(const Dense& d, bool n_tiles, const Packed& packed, const CombinePlan& experts,
                          const Context& context);
/// Products of the same packed tokens: the first two in one launch, where they can be.
void multiply_together(std::span<const Dense> list, bool n_tiles, const Packed& packed,
                       const Context& context);
/// Packs, then multiplies.
void multiply_dense(const Dense& d, const Context& context, Scratch scratch);
int64_t dense_scratch(int64_t rows, int64_t heads, int64_t columns);

}  // namespace sluice::backend::cuda
