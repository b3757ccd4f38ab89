// Down projections of one row and of two: rows of experts as a warp copies them to shared memory, all at
// once and without registers.
#pragma once

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/gemv_types.cuh"
#include "backend/cuda/gemv/rows.cuh"

namespace sluice::backend::cuda::gemv_down {

inline constexpr int kThreads = 1024;
inline constexpr int kHalf = kThreads / 2;   ///< threads that fetch, and others
inline constexpr int kOutputs = kHalf / 32;  ///< rows of the matrices of a thread block

/// A plane of an expert's row, and where that of a stage's rows begins.
struct StagePlane {
  int bytes, at;  ///< bytes: a multiple of 4, what asynchronous copies take; at: of 16
};

/// Rows of experts in shared memory.
struct Stage {
  StagePlane codes, high, scale, super;
  int bytes;

  static constexpr int kPadding = 4 * 16;  ///< of a stage at most

  /// Of `count` rows of a type.
  static Stage of(const PlaneBytes& row, int count) {
    Stage stage{};
    const auto place = [&](int64_t plane) {
      const StagePlane placed{static_cast<int>(plane), stage.bytes};
      stage.bytes += Activations::round16(count * placed.bytes);
      return placed;
    };
    stage.codes = place(row.codes), stage.high = place(row.high);
    stage.scale = place(row.scale), stage.super = place(row.super);
    return stage;
  }
  /// Whether copies can take rows of the type.
  static bool takes(const PlaneBytes& row) { return row.high % 4 == 0 && row.scale % 2 == 0; }
  static int row_bytes(const PlaneBytes& row) {
    return static_cast<int>(row.codes + row.high + row.scale + row.super);
  }
  __device__ CodePlanes planes(const uint8_t* at) const {
    return {at + codes.at, at + high.at, at + scale.at, at + super.at};
  }
};

/// Copies a row of a plane to be a stage's i-th, asynchronously: the warp together.
__device__ inline void copy_row(uint8_t* stage, const StagePlane& plane, int i, const uint8_t* weights,
                                int row) {
  const uint8_t* const from = weights + int64_t{row} * plane.bytes;
  uint8_t* const to = stage + plane.at + i * plane.bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (plane.bytes % 16 == 0) {
#pragma unroll 1
    for (int at = 16 * lane; at < plane.bytes; at += 512) copy_async(to + at, from + at);
  } else {
#pragma unroll 1
    for (int at = 4 * lane; at < plane.bytes; at += 128) copy_async_four(to + at, from + at);
  }
}
/// The same of scales that no asynchronous copy takes (of superblocks of Q6_K 768 columns have 6 bytes, of
/// MXFP4's blocks 2,880 columns 90): a stage's `count` rows, all at once.
template <typename RowOf>
__device__ inline void copy_halves(uint8_t* stage, const StagePlane& plane, const uint8_t* weights, int count,
                                   RowOf&& row_of) {
  constexpr int kAtOnce = 6;  // of a lane: four rows of 90 bytes
  const int halves = plane.bytes / 2, all = count * halves;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int first = 0; first < all; first += 32 * kAtOnce) {
    uint16_t half[kAtOnce];
    const auto place = [&](int k) { return min(first + 32 * k + lane, all - 1); };
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + 32 * k >= all) break;
      const int i = place(k) / halves;
      const int64_t from = int64_t{row_of(i)} * halves + place(k) - i * halves;
      half[k] = __ldg(reinterpret_cast<const uint16_t*>(weights) + from);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + 32 * k >= all) break;
      reinterpret_cast<uint16_t*>(stage + plane.at)[place(k)] = half[k];
    }
  }
}
/// Copies row row_of(i) of the weights to be a stage's i-th, of `count`: the warp together.
template <typename RowOf>
__device__ inline void copy_rows(uint8_t* to, const Stage& stage, const CodePlanes& weights, int count,
                                 RowOf&& row_of) {
  const bool scale_in_fours = stage.scale.bytes % 4 == 0, super_in_fours = stage.super.bytes % 4 == 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int row = row_of(i);
    copy_row(to, stage.codes, i, weights.codes, row);
    copy_row(to, stage.high, i, weights.high, row);
    if (scale_in_fours) copy_row(to, stage.scale, i, weights.scale, row);
    if (super_in_fours) copy_row(to, stage.super, i, weights.super, row);
  }
  if (!scale_in_fours) copy_halves(to, stage.scale, weights.scale, count, row_of);
  if (!super_in_fours) copy_halves(to, stage.super, weights.super, count, row_of);
}

/// Calls start.template operator()<Routed, Shared>() for types that files mix; else false.
template <typename Start>
bool with_down_types(quant::Type routed, quant::Type shared, Start&& start) {
  using quant::Type;
  // What files of Q4_0 have in their first layers.
  if (routed == Type::Q4_1 && shared == Type::Q6_K)
    return start.template operator()<Type::Q4_1, Type::Q6_K>(), true;
  // Rows of experts that are no whole 256 columns, beside shared ones that are: what stands for Q4_K, Q6_K.
  if (routed == Type::Q5_0 && shared == Type::Q4_K)
    return start.template operator()<Type::Q5_0, Type::Q4_K>(), true;
  if (routed == Type::Q8_0 && shared == Type::Q6_K)
    return start.template operator()<Type::Q8_0, Type::Q6_K>(), true;
  return with_types(routed, shared, start);
}

}  // namespace sluice::backend::cuda::gemv_down
