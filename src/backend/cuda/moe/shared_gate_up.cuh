// Shared experts' gates and ups of up to 8 rows, beside whatever else a thread block waits for: their weights
// are asked for before anything is known, their tokens, packed by the launch before, as soon as these are
// there, and products are made when there is time. An item is 8 gates and their ups; a thread block takes
// every gridDim.x-th, its warps a chunk of the columns each.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda::small_batch {

inline constexpr int kItemOutputs = kNTileTokens;
/// Of a thread block at most: weights of all its items are in registers, sums of all meet together.
inline constexpr int kMostItems = 3;
inline constexpr int kItemThreads = kNTileTokens * 2 * kItemOutputs;  ///< that add an item's sums up
static_assert(kMostItems * kItemThreads <= kThreads);

/// Without a division of its own, which would go the long way for what columns without tokens hold. Where
/// e^-x overflows, or comes above 2^126 so that the quick division gives zero, zero is right.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <quant::Type kType>
class GateUpItems {
 public:
  static constexpr int kReductionFloats = kMostItems * reduction_floats(1);

  __device__ __forceinline__ explicit GateUpItems(const SharedGateUp& p)
      : p_(p), warp_(static_cast<int>(threadIdx.x) / 32), chunks_(p.gate.columns / kChunkColumns) {}

  __device__ __forceinline__ void ask_weights() {
#pragma unroll
    for (int i = 0; i < kMostItems; ++i) {
      if (!has(i) || warp_ >= chunks_) break;
      const int first = item(i) * kItemOutputs;
      unit_[i].load(p_.gate, p_.gate.row(0, first), p_.up, p_.up.row(0, first), warp_);
    }
  }
  /// Asks for the tokens; not from L1, which may have older ones.
  __device__ __forceinline__ void ask_tokens(int rows) {
    if (!has(0)) return;
    const auto* const packed = reinterpret_cast<const char*>(p_.tokens.data);
    if (warp_ < chunks_) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        token_[j] = __ldcg(Unit<kType>::place_of_token(packed, chunks_ * kChunkColumns * 2, warp_, j, 0));
    }
    scale_ = own_token() < rows ? load_result(p_.tokens.scale + own_token()) : 0;
  }
  /// Leaves the warp's sums in shared memory; then the block has to meet.
  __device__ __forceinline__ void multiply(float* reduction) {
#pragma unroll 1
    for (int i = 0; has(i); ++i) {
      float sum[1][4] = {};
      if (warp_ < chunks_) unit_[0].multiply(p_.gate, sum, [&](int j, int) { return token_[j]; });
      leave_sums(sum, reduction + i * reduction_floats(1));
#pragma unroll
      for (int next = 1; next < kMostItems; ++next) unit_[next - 1] = unit_[next];
    }
  }
  /// Sums of all warps, in their order: a thread has a gate or an up of a token. shares: by which tokens'
  /// results are multiplied.
  __device__ __forceinline__ void store(const float* reduction, int rows, const float* shares) const {
    const int i = static_cast<int>(threadIdx.x) / kItemThreads;
    const int output = static_cast<int>(threadIdx.x) % (2 * kItemOutputs);
    if (i >= kMostItems || !has(i)) return;
    const float* const of_item = reduction + i * reduction_floats(1) + own_token() * kReductionPitch + output;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_item[w * floats_of_warp(1)];
    sum *= scale_;
    const float up = __shfl_down_sync(kWholeWarp, sum, kItemOutputs);
    if (output < kItemOutputs && own_token() < rows)
      p_.out(own_token())[item(i) * kItemOutputs + output] = silu(sum) * (up * shares[own_token()]);
  }

 private:
  __device__ __forceinline__ static int item(int i) {
    return static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ bool has(int i) const { return item(i) * kItemOutputs < p_.gate.rows; }
  __device__ __forceinline__ static int own_token() {
    return static_cast<int>(threadIdx.x) % kItemThreads / (2 * kItemOutputs);
  }

  const SharedGateUp& p_;
  const int warp_, chunks_;
  Unit<kType> unit_[kMostItems];
  uint4 token_[4];
  float scale_;
};

/// Whether it takes these, [outputs][columns] each.
inline bool serves_gate_up(quant::Type type, int64_t outputs, int64_t columns, int64_t rows, int sm_count) {
  return (type == quant::Type::Q5_K || type == quant::Type::Q4_0 || type == quant::Type::Q4_K) &&
         rows <= kNTileTokens && outputs % kItemOutputs == 0 &&
         outputs <= int64_t{kMostItems} * kItemOutputs * sm_count && columns % kChunkColumns == 0 &&
         columns <= kWarps * kChunkColumns;
}

}  // namespace sluice::backend::cuda::small_batch
