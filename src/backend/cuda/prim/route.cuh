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

/// The index of the largest of values [count] in shared memory, the lower among equals; on all lanes.
__device__ inline int warp_largest(const float* values, int count) {
  float best = -INFINITY;
  int at = 0x7fffffff;
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    if (values[i] > best) best = values[i], at = i;
  }
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, best, step);
    const int other_at = __shfl_xor_sync(kWholeWarp, at, step);
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
  }
  return at;
}

/// scores: shared memory of the logits [experts], becomes the scores; selection: shared memory [experts],
/// overwritten. bias may be null. A whole warp calls it.
__device__ inline void route_warp(const RouteRule& rule, float* scores, float* selection, const float* bias,
                                  int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  if (rule.sigmoid) {
    for (int e = lane; e < rule.experts; e += 32) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
  } else {
    float largest = -INFINITY, sum = 0;
    for (int e = lane; e < rule.experts; e += 32) largest = fmaxf(largest, scores[e]);
    largest = lane_max(largest);
    for (int e = lane; e < rule.experts; e += 32) sum += scores[e] = expf(scores[e] - largest);
    sum = lane_sum(sum);
    for (int e = lane; e < rule.experts; e += 32) scores[e] /= sum;
  }
  constexpr float kLowest = program::Route::kLowest;
  for (int e = lane; e < rule.experts; e += 32) {
    const float value = scores[e] + (bias != nullptr ? __ldg(bias + e) : 0.0f);
    selection[e] = value > kLowest ? value : kLowest;
  }
  __syncwarp();
  if (rule.groups > 1) {
    // A lane judges a group by its two best experts (or its best); the worst groups' experts are barred.
    const int size = rule.experts / rule.groups;
    __shared__ float values[kMostRouted];
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
    for (int i = 0; i < rule.groups_used; ++i) {
      const int g = warp_largest(values, rule.groups);
      __syncwarp();
      if (g % 32 == lane) kept |= 1u << (g / 32), values[g] = -INFINITY;
      __syncwarp();
    }
    for (int g = lane; g < rule.groups; g += 32) {
      if ((kept >> (g / 32) & 1u) != 0) continue;
      for (int e = g * size; e < (g + 1) * size; ++e) selection[e] = -INFINITY;
    }
    __syncwarp();
  }
  float sum = 0;
  for (int k = 0; k < rule.used; ++k) {
    const int e = warp_largest(selection, rule.experts);
    sum += scores[e];
    __syncwarp();
    if (lane == 0) ids[k] = e, weights[k] = scores[e], selection[e] = -INFINITY;
    __syncwarp();
  }
  const float factor = rule.normalize ? rule.scale / fmaxf(sum, program::Route::kSmallestSum) : rule.scale;
  if (lane == 0) {
    for (int k = 0; k < rule.used; ++k) weights[k] *= factor;
  }
}

}  // namespace sluice::backend::cuda
