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

}  // namespace sluice::backend::cuda
