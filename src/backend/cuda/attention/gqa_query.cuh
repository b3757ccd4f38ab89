// Heads of queries and keys made ready (norm and rope), a warp a head: what gqa_query.cu does by itself and
// gqa_split_kv.cu before it attends.
#pragma once

#include "backend/cuda/host/device.h"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

struct GqaQueryArgs {
  Rows<float> q, k, v;
  const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *factors;
  RopeTable table;
  float epsilon;
  int32_t rotated;
};

/// The angles of a position, every 32nd pair on a lane.
template <int kPairs>
struct HeadAngles {
  SinCos of[kPairs];

  __device__ __forceinline__ HeadAngles(const GqaQueryArgs& args, int position, int lane) {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      of[k] = {0, 1};
      if (lane + 32 * k < args.rotated / 2) of[k] = args.table.sin_cos(position, lane + 32 * k, args.factors);
      asm volatile("" : "+f"(of[k].sine), "+f"(of[k].cosine));  // here, and not where they are used first
    }
  }
};

/// A head's numbers, every 32nd on a lane.
template <int kEach>
struct HeadNumbers {
  float of[kEach];

  __device__ __forceinline__ void ask(const float* from, int columns, int lane) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) of[k] = 32 * k < columns ? load_result(from + lane + 32 * k) : 0.0f;
  }
  __device__ __forceinline__ void add(const HeadNumbers& other) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) of[k] += other.of[k];
  }
  __device__ __forceinline__ void put(float* to, int columns, int lane) const {
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (32 * k < columns) to[lane + 32 * k] = of[k];
  }
  /// Of a head's part of a bias, or zeroes.
  __device__ __forceinline__ void ask_bias(const float* bias, int head, int columns, int lane) {
    ask_weight(bias != nullptr ? bias + head * columns : nullptr, columns, lane);
  }
  /// Of a norm's weight, or zeroes.
  __device__ __forceinline__ void ask_weight(const float* from, int columns, int lane) {
    const auto* const bits = reinterpret_cast<const uint32_t*>(from) + lane;
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      of[k] = from != nullptr && 32 * k < columns ? __uint_as_float(load_weight(bits + 32 * k)) : 0.0f;
  }
};

/// Rotates pairs of a head's numbers that a lane has both of: k and k + kApart.
template <int kApart, int kEach, int kPairs>
__device__ __forceinline__ void rotate(HeadNumbers<kEach>& x, const HeadAngles<kPairs>& angles) {
#pragma unroll
  for (int k = 0; k < kApart; ++k) {
    const SinCos by = angles.of[k];
    const float first = x.of[k], second = x.of[k + kApart];
    x.of[k] = first * by.cosine - second * by.sine, x.of[k + kApart] = first * by.sine + second * by.cosine;
  }
}

/// Heads normed where they have a weight, and rotated: together, since the steps of one wait for each other.
/// is_key(i): of head i; at(i): shared memory of the warp for it, for pairs that lie on different lanes.
template <int kHeads, int kEach, int kPairs, typename IsKey, typename At>
__device__ __forceinline__ void make_ready(const GqaQueryArgs& args, HeadNumbers<kEach> (&x)[kHeads],
                                           const HeadNumbers<kEach>& q_norm, const HeadNumbers<kEach>& k_norm,
                                           const HeadAngles<kPairs>& angles, int columns, int lane,
                                           IsKey is_key, At at) {
  if (args.q_norm != nullptr || args.k_norm != nullptr) {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      float squares = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) squares += x[i].of[k] * x[i].of[k];
      const float inverse = rsqrtf(lane_sum(squares) / static_cast<float>(columns) + args.epsilon);
      if ((is_key(i) ? args.k_norm : args.q_norm) == nullptr) continue;
#pragma unroll
      for (int k = 0; k < kEach; ++k) x[i].of[k] *= inverse * (is_key(i) ? k_norm : q_norm).of[k];
    }
  }
  const int half = args.rotated / 2;
  if (!args.table.neighbours && half % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (half == 32) rotate<1>(x[i], angles);
      if constexpr (kEach >= 4)
        if (half == 64) rotate<2>(x[i], angles);
      if constexpr (kEach >= 8) {
        if (half == 96) rotate<3>(x[i], angles);
        if (half == 128) rotate<4>(x[i], angles);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) x[i].put(at(i), columns, lane);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int pair = lane + 32 * k;
    if (pair >= half) continue;
    const int first = args.table.first(pair), second = args.table.second(pair, half);
    const SinCos by = angles.of[k];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      float* const head = at(i);
      const float a = head[first], b = head[second];
      head[first] = a * by.cosine - b * by.sine, head[second] = a * by.sine + b * by.cosine;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (32 * k < columns) x[i].of[k] = at(i)[lane + 32 * k];
  }
}

}  // namespace sluice::backend::cuda
