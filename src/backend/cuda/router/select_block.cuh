// The selection of experts by some warps of a thread block, a lane an expert, for kernels whose blocks select
// for themselves. By a single warp with eight experts a lane (route_lanes) 8 of 256 took 3.5 us on an H200:
// some thousand instructions that wait for each other, of which most are fetched for one use.
#pragma once

#include "backend/cuda/router/route.cuh"

namespace sluice::backend::cuda {

/// Segments of neighbouring experts that a row is divided into: fewer than twice as many as are selected.
inline constexpr int kMostSegments = 64;

struct BlockRule : RouteRule {
  int warps;    ///< that select
  int segment;  ///< 2^segment experts, so that there are as many segments as are selected
  bool biased;  ///< scores have a bias of the selection; then they are sigmoids
};

inline BlockRule block_rule(const RouteRule& rule, bool biased) {
  int segment = 0;
  while (segment < 5 && 2 << segment <= rule.experts / rule.used) ++segment;
  return {rule, (rule.experts + 31) / 32, segment, biased};
}

/// Whether select_block can do what route_warp does.
inline bool in_block(const RouteRule& rule, bool biased) {
  return in_lanes(rule) && (rule.sigmoid || !biased);
}

/// What a thread block selects from for a row, and what it selects.
struct BlockSelection {
  int32_t ids[32];
  float logits[32];                     ///< of those
  unsigned most[kMostSegments];         ///< the first in order of each segment
  uint64_t candidates[32 * kMostEach];  ///< order and number of experts that may be selected
  float of_candidate[32 * kMostEach];   ///< logits
  float sums[kMostEach];                ///< of the warps
  int count;                            ///< candidates; zero before, for all warps to see
};

/// Named barrier 3: for the warps that select.
__device__ inline void sync_selecting(const BlockRule& r) {
  asm volatile("bar.sync 3, %0;" ::"r"(r.warps * 32) : "memory");
}

/// Selects for each of kRows rows. expert: the lane's, 32 a warp; logit: its own of each row; bias: of the
/// selection. Whoever is not behind the first of every segment may be selected, some 20 of 256; their places
/// are counted. Ties are as route_lanes has them. Afterwards these warps meet those that wait for the ids.
template <int kRows>
__device__ __forceinline__ void select_block(const BlockRule& r, int expert, const float (&logit)[kRows],
                                             float bias, BlockSelection (&s)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool there = expert < r.experts;
  unsigned order[kRows], most[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    // A softmax has the logits' order. A sigmoid of large logits is 1, where the lower expert comes first.
    const float score = r.sigmoid ? sigmoid(logit[i]) + (r.biased ? bias : 0.0f) : logit[i];
    constexpr float kLowest = program::Route::kLowest;
    most[i] = order[i] = there ? order_of(score > kLowest ? score : kLowest) : 0;
  }
#pragma unroll 1
  for (int step = 1; step >> r.segment == 0; step *= 2) {
#pragma unroll
    for (unsigned& one : most) one = max(one, __shfl_xor_sync(kWholeWarp, one, step));
  }
  const int segments = ((r.experts - 1) >> r.segment) + 1, segment = expert >> r.segment;
  if (there && segment << r.segment == expert) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i].most[segment] = most[i];
  }
  sync_selecting(r);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const unsigned least = __reduce_min_sync(
        kWholeWarp, min(s[i].most[min(lane, segments - 1)], s[i].most[min(lane + 32, segments - 1)]));
    if (order[i] < least) continue;
    const int at = atomicAdd(&s[i].count, 1);
    s[i].candidates[at] = uint64_t{order[i]} << 32 | ~static_cast<uint32_t>(expert);
    s[i].of_candidate[at] = logit[i];
  }
  sync_selecting(r);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int count = s[i].count;
    if (expert >= count) continue;
    const uint64_t own = s[i].candidates[expert];
    int rank = 0;
#pragma unroll 4
    for (int other = 0; other < count; ++other) rank += s[i].candidates[other] > own ? 1 : 0;
    if (rank >= r.used) continue;
    s[i].ids[rank] = static_cast<int32_t>(~static_cast<uint32_t>(own));
    s[i].logits[rank] = s[i].of_candidate[expert];
  }
}

/// The weight of selected expert `lane` of a row, in the first warp; others get none. The warps that have
/// selected call it once all see what they have.
__device__ __forceinline__ float weigh_block(const BlockRule& r, int expert, float logit, BlockSelection& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float largest = s.logits[0];  // where scores are those of a softmax
  float all = 0;
  if (!r.sigmoid) {
    const float part = lane_sum(expert < r.experts ? __expf(logit - largest) : 0.0f);
    if (lane == 0) s.sums[expert / 32] = part;
    sync_selecting(r);
#pragma unroll 1
    for (int w = 0; w < r.warps; ++w) all += s.sums[w];
  }
  const float own = s.logits[min(lane, r.used - 1)];
  const float score = r.sigmoid ? sigmoid(own) : __fdividef(__expf(own - largest), all);
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < r.used; ++k) sum += __shfl_sync(kWholeWarp, score, k);
  return score * (r.normalize ? r.scale / fmaxf(sum, program::Route::kSmallestSum) : r.scale);
}

}  // namespace sluice::backend::cuda
