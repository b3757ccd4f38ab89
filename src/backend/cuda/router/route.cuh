// The selection of experts by one warp (program/ops/route.h says what is selected).
#pragma once

#include <cmath>

#include "backend/cuda/prim/warp.cuh"
#include "program/ops/route.h"

namespace sluice::backend::cuda {

inline constexpr int kMostRouted = 1024;

struct RouteRule {
  int experts, used, groups, groups_used;
  bool sigmoid, normalize;
  float scale;
};

inline RouteRule route_rule(const program::Route& op, int64_t experts, int64_t used) {
  return {static_cast<int>(experts),
          static_cast<int>(used),
          op.groups,
          op.groups_used,
          op.gating == program::Gating::Sigmoid,
          op.normalize,
          op.scale};
}

/// An unsigned integer that is ordered as the float is (which is not NaN); both zeros are the same.
__device__ inline unsigned order_of(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The index of the largest of values [count] in shared memory, the lower among equals; on all lanes.
__device__ inline int warp_largest(const float* values, int count) {
  unsigned best = 0;
  int at = count;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    const unsigned order = order_of(values[i]);
    if (order > best) best = order, at = i;
  }
  const unsigned largest = __reduce_max_sync(kWholeWarp, best);
  return static_cast<int>(__reduce_min_sync(kWholeWarp, best == largest ? static_cast<unsigned>(at) : ~0u));
}

/// scores: shared memory of the logits [experts], becomes the scores; selection: shared memory [experts],
/// overwritten. bias may be null, or lies
/// anywhere. A whole warp calls it.
__device__ inline void route_warp(const RouteRule& rule, float* scores, float* selection, const float* bias,
                                  int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  if (rule.sigmoid) {
#pragma unroll 1
    for (int e = lane; e < rule.experts; e += 32) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
  } else {
    float largest = -INFINITY, sum = 0;
#pragma unroll 1
    for (int e = lane; e < rule.experts; e += 32) largest = fmaxf(largest, scores[e]);
    largest = lane_max(largest);
#pragma unroll 1
    for (int e = lane; e < rule.experts; e += 32) sum += scores[e] = expf(scores[e] - largest);
    sum = lane_sum(sum);
#pragma unroll 1
    for (int e = lane; e < rule.experts; e += 32) scores[e] /= sum;
  }
  constexpr float kLowest = program::Route::kLowest;
#pragma unroll 1
  for (int e = lane; e < rule.experts; e += 32) {
    const float value = scores[e] + (bias != nullptr ? bias[e] : 0.0f);
    selection[e] = value > kLowest ? value : kLowest;
  }
  __syncwarp();
  if (rule.groups > 1) {
    // A lane judges a group by its two best experts (or its best); the worst groups' experts are barred.
    const int size = rule.experts / rule.groups;
    __shared__ float values[kMostRouted];
#pragma unroll 1
    for (int g = lane; g < rule.groups; g += 32) {
      float first = -INFINITY, second = -INFINITY;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        const float v = selection[e];
        if (v > first) {
          second = first, first = v;
        } else if (v > second) {
          second = v;
        }
      }
      values[g] = rule.sigmoid && size > 1 ? first + second : first;
    }
    __syncwarp();
    unsigned kept = 0;  // of this lane's groups lane, lane + 32, ...
#pragma unroll 1
    for (int i = 0; i < rule.groups_used; ++i) {
      const int g = warp_largest(values, rule.groups);
      __syncwarp();
      if (g % 32 == lane) kept |= 1u << (g / 32), values[g] = -INFINITY;
      __syncwarp();
    }
#pragma unroll 1
    for (int g = lane; g < rule.groups; g += 32) {
      if ((kept >> (g / 32) & 1u) != 0) continue;
      for (int e = g * size; e < (g + 1) * size; ++e) selection[e] = -INFINITY;
    }
    __syncwarp();
  }
  __shared__ float chosen[kMostRouted];
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < rule.used; ++k) {
    const int e = warp_largest(selection, rule.experts);
    const float score = scores[e];
    sum += score;
    __syncwarp();
    if (lane == 0) ids[k] = e, chosen[k] = score, selection[e] = -INFINITY;
    __syncwarp();
  }
  const float factor = rule.normalize ? rule.scale / fmaxf(sum, program::Route::kSmallestSum) : rule.scale;
#pragma unroll 1
  for (int k = lane; k < rule.used; k += 32) weights[k] = chosen[k] * factor;
}

/// By how much shared experts count that have this logit.
__device__ inline float sigmoid(float logit) { return __fdividef(1.0f, 1.0f + __expf(-logit)); }

/// Experts that a lane of route_lanes has at most: lane, lane + 32, ...
inline constexpr int kMostEach = 8;

/// Whether route_lanes can do what route_warp does.
inline bool in_lanes(const RouteRule& rule) {
  return rule.groups == 1 && rule.experts <= 32 * kMostEach && rule.used <= 32;
}

/// The selection in registers, some thousand cycles less: scores: logits of this lane's experts, of which it
/// has kEach at most, become the scores; bias: shared memory of all experts', or null. Lane k gets the k-th
/// expert and its weight. A whole warp calls it.
template <int kEach>
__device__ inline void route_lanes(const RouteRule& rule, float (&scores)[kEach], const float* bias, int& id,
                                   float& weight) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (rule.sigmoid) {
#pragma unroll
    for (float& score : scores) score = __fdividef(1.0f, 1.0f + __expf(-score));
  } else {
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      largest = lane + 32 * i < rule.experts ? fmaxf(largest, scores[i]) : largest;
    largest = lane_max(largest);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      sum += scores[i] = lane + 32 * i < rule.experts ? __expf(scores[i] - largest) : 0.0f;
    const float inverse = __fdividef(1.0f, lane_sum(sum));
#pragma unroll
    for (float& score : scores) score *= inverse;
  }
  constexpr float kLowest = program::Route::kLowest;
  unsigned order[kEach];  // 0: not to be selected, which no number's order is
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + 32 * i;
    const float value = scores[i] + (bias != nullptr && e < rule.experts ? bias[e] : 0.0f);
    order[i] = e < rule.experts ? order_of(value > kLowest ? value : kLowest) : 0;
  }
  unsigned best, at;  // the lane's first: its order, and which expert
  float score;
  const auto find = [&] {
    best = order[0], at = lane, score = scores[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i)
      if (order[i] > best) best = order[i], at = lane + 32 * i, score = scores[i];
  };
  find();
  id = 0, weight = 0;
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < rule.used; ++k) {
    const unsigned largest = __reduce_max_sync(kWholeWarp, best);
    const unsigned e = __reduce_min_sync(kWholeWarp, best == largest ? at : ~0u);  // among equals the lowest
    const float its = __shfl_sync(kWholeWarp, score, static_cast<int>(e) % 32);
    sum += its;
    if (lane == k) id = static_cast<int>(e), weight = its;
    if (at != e) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (at == lane + 32 * i) order[i] = 0;
    find();
  }
  weight *= rule.normalize ? rule.scale / fmaxf(sum, program::Route::kSmallestSum) : rule.scale;
}

/// Calls go.template operator()<kEach>() for as many experts a lane as there are: instructions that are
/// run once cost their fetch, so the shortest code that will do is the fastest.
template <typename Go>
__device__ inline void with_experts_of_lane(int experts, Go&& go) {
  static_assert(kMostEach == 8);
  if (experts <= 64) return go.template operator()<2>();
  if (experts <= 128) return go.template operator()<4>();
  go.template operator()<kMostEach>();
}

}  // namespace sluice::backend::cuda
