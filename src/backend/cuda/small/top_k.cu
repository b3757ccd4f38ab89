// A row's columns are some two thousand groups at most. The kMaxTopK-th largest of the groups' largest
// numbers is a floor that so many numbers of the row reach, and hardly any more: those are collected and put
// in order. A row with many equal numbers may have more of them than there is room for; its tokens are then
// found one after another.
#include "backend/cuda/small/top_k.h"

#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/router/route.cuh"

namespace sluice::backend::cuda {
namespace {

using program::Draw, program::kMaxTopK, program::Likely;

constexpr int kMostGroups = 2048, kThreads = 1024, kWarps = kThreads / 32;
constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32;
constexpr int kRoom = 1024;      // numbers that reach the floor
constexpr int kGroupRoom = 256;  // groups that do
constexpr int kEnough = 96;      // few enough groups that do
constexpr int kAtOnce = 3;       // of those, whose columns a warp asks for
constexpr int kSharers = 8;      // threads that find a number's place
constexpr int kPick = static_cast<int>(kMaxTopK);

struct Args {
  const float* logits;
  int64_t stride;             // of a row
  uint32_t* largest;          // [row][kMostGroups]
  Likely* found;              // [row][kMaxTopK]
  const Draw* draws;          // [row]
  int32_t *drawn, *told;      // [row], for the next step and for the host
  int columns, each, groups;  // each: columns of a group, 1 or a multiple of 32
};

/// A number's order among others; 0 for what cannot be drawn: NaN and minus infinity.
__device__ inline uint32_t rank_of(float value) { return value > -INFINITY ? order_of(value) : 0; }
__device__ inline float number_of(uint32_t rank) {
  return __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
}
/// Of equal numbers the lower token comes first.
__device__ inline uint64_t entry(uint32_t rank, int token) {
  return uint64_t{rank} << 32 | ~static_cast<uint32_t>(token);
}
__device__ inline int token_of(uint64_t entry) { return static_cast<int>(~static_cast<uint32_t>(entry)); }

/// The largest rank of every group: a warp takes one, or 32 of a column each.
__global__ void __launch_bounds__(kGroupThreads)
    largest_of_groups(const Timestamps timestamps, const __grid_constant__ Args args) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int task = static_cast<int>(blockIdx.x) * kGroupWarps + static_cast<int>(threadIdx.x) / 32;
  const float* const row = args.logits + blockIdx.y * args.stride;
  uint32_t* const largest = args.largest + blockIdx.y * kMostGroups;
  if (args.each == 1) {
    const int c = task * 32 + lane;
    if (c < args.columns) largest[c] = rank_of(load_result(row + c));
    return;
  }
  if (task >= args.groups) return;
  uint32_t most = 0;
#pragma unroll 4
  for (int i = lane; i < args.each; i += 32) {
    const int c = task * args.each + i;
    if (c < args.columns) most = max(most, rank_of(load_result(row + c)));
  }
  most = __reduce_max_sync(kWholeWarp, most);
  if (lane == 0) largest[task] = most;
}

/// A rank that at least kPick of the threads' ranks reach, and no more than kEnough of them where digits can
/// tell: at last the kPick-th largest itself. 1 where fewer are not 0. The block meets.
template <int kEach>
__device__ inline uint32_t floor_of(const uint32_t (&ranks)[kEach]) {
  __shared__ int count[256];
  __shared__ uint32_t chosen;
  __shared__ int wanted, reaching;
  uint32_t prefix = 0;
  int want = kPick;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) count[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (const uint32_t rank : ranks) {
      if (rank != 0 && (shift == 24 || rank >> (shift + 8) == prefix >> (shift + 8)))
        atomicAdd(&count[rank >> shift & 255u], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // Lane l has digits 255 - 8 l and down.
      const int lane = static_cast<int>(threadIdx.x);
      int own = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) own += count[255 - 8 * lane - i];
      int upto = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, upto, step);
        if (lane >= step) upto += other;
      }
      const unsigned reach = __ballot_sync(kWholeWarp, upto >= want);
      if (reach == 0) {
        if (lane == 0) chosen = 0;
      } else if (lane == __ffs(static_cast<int>(reach)) - 1) {
        int left = want - (upto - own), digit = 255 - 8 * lane;
        while (count[digit] < left) left -= count[digit--];
        chosen = prefix | static_cast<uint32_t>(digit) << shift, wanted = left;
        reaching = kPick - left + count[digit];
      }
    }
    __syncthreads();
    if (shift == 24 && chosen == 0) return 1;  // fewer, or as good as none below it: all of them reach this
    prefix = chosen, want = wanted;
    if (reaching <= kEnough) break;
  }
  return prefix;
}

/// The largest entry below `below` in the row; 0: there is none. The block meets.
__device__ inline uint64_t next_entry(const float* row, int columns, uint64_t below) {
  __shared__ uint64_t best[kWarps];
  uint64_t most = 0;
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) {
    const uint32_t rank = rank_of(load_result(row + c));
    const uint64_t one = entry(rank, c);
    if (rank != 0 && one < below) most = max(most, one);
  }
  for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(kWholeWarp, most, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = most;
  __syncthreads();
  for (const uint64_t one : best) most = max(most, one);
  return most;
}

/// Sums of a lane's two numbers, of places l and l + 32, up to each of them.
__device__ inline float2 sums_upto(float2 numbers, float& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float2 upto = numbers;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_up_sync(kWholeWarp, upto.x, step), y = __shfl_up_sync(kWholeWarp, upto.y, step);
    if (lane >= step) upto.x += x, upto.y += y;
  }
  upto.y += __shfl_sync(kWholeWarp, upto.x, 31);
  total = __shfl_sync(kWholeWarp, upto.y, 31);
  return upto;
}

/// Draws one of a row's top-k tokens (program/step.h), or 0 where there is none. A warp's; lane l has the
/// tokens of places l and l + 32.
__device__ inline int draw(const uint64_t (&picked)[kPick], const Draw& how) {
  static_assert(kPick == 64);
  if (picked[0] == 0) return 0;
  if (how.temperature == 0) return token_of(picked[0]);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t one = picked[lane], other = picked[lane + 32];
  const float best = number_of(static_cast<uint32_t>(picked[0] >> 32));
  // Both infinite: no difference.
  const auto below_best = [best](uint64_t entry) {
    const float logit = number_of(static_cast<uint32_t>(entry >> 32));
    return logit == best ? 0.0f : logit - best;
  };
  const float2 below{below_best(one), below_best(other)};
  bool keep = one != 0 && lane < how.top_k, keep_other = other != 0 && lane + 32 < how.top_k;
  float total;
  if (how.top_p < 1) {
    const float2 weights{keep ? expf(below.x) : 0, keep_other ? expf(below.y) : 0};
    const float2 upto = sums_upto(weights, total);
    keep = keep && (lane == 0 || upto.x - weights.x < how.top_p * total);
    keep_other = keep_other && upto.y - weights.y < how.top_p * total;
  }
  if (how.min_p > 0) {
    const float floor = logf(how.min_p);
    keep = keep && below.x >= floor, keep_other = keep_other && below.y >= floor;
  }
  const float2 weights{keep ? expf(below.x / how.temperature) : 0,
                       keep_other ? expf(below.y / how.temperature) : 0};
  const float2 upto = sums_upto(weights, total);
  const float target = how.uniform * total;
  const auto places = [](bool first, bool second) {
    return uint64_t{__ballot_sync(kWholeWarp, second)} << 32 | __ballot_sync(kWholeWarp, first);
  };
  // The first that exceeds the target, or the last of all where sums were rounded down. The likeliest is
  // always there, but not in the rows that fill up a bucket.
  const uint64_t some = places(lane == 0 || weights.x > 0, weights.y > 0);
  const uint64_t beyond = some & places(target < upto.x, target < upto.y);
  const int place =
      beyond != 0 ? __ffsll(static_cast<long long>(beyond)) - 1 : 63 - __clzll(static_cast<long long>(some));
  return token_of(picked[place]);
}

/// A block finds a row's tokens.
__global__ void __launch_bounds__(kThreads)
    find_top_k(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ uint64_t entries[kRoom], picked[kPick];
  __shared__ int groups[kGroupRoom];
  __shared__ int group_count, count;
  const PdlLink pdl(timestamps);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) group_count = count = 0;
  if (thread < kPick) picked[thread] = 0;
  pdl.wait();
  const float* const row = args.logits + blockIdx.x * args.stride;
  constexpr int kEach = kMostGroups / kThreads;
  uint32_t ranks[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = i * kThreads + thread;
    ranks[i] = group < args.groups ? __ldcg(args.largest + blockIdx.x * kMostGroups + group) : 0;
  }
  const uint32_t floor = floor_of(ranks);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (ranks[i] < floor) continue;
    const int at = atomicAdd(&group_count, 1);
    if (at < kGroupRoom) groups[at] = i * kThreads + thread;
  }
  __syncthreads();
  bool room = group_count <= kGroupRoom;
  if (room) {
    for (int first = warp; first < group_count; first += kWarps * kAtOnce) {
      for (int j = lane; j < args.each; j += 32) {
        float value[kAtOnce];
        int column[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = first + k * kWarps;
          column[k] = i < group_count ? groups[i] * args.each + j : args.columns;
          value[k] = column[k] < args.columns ? load_result(row + column[k]) : -INFINITY;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const uint32_t rank = rank_of(value[k]);
          if (rank < floor) continue;
          const int at = atomicAdd(&count, 1);
          if (at < kRoom) entries[at] = entry(rank, column[k]);
        }
      }
    }
  }
  __syncthreads();
  room = room && count <= kRoom;
  if (room) {
    const int entered = count, own = thread / kSharers;
    for (int base = 0; base < entered; base += kThreads / kSharers) {
      const uint64_t one = entries[min(base + own, entered - 1)];
      int before = 0;
#pragma unroll 4
      for (int i = thread % kSharers; i < entered; i += kSharers) before += entries[i] > one;
#pragma unroll
      for (int step = 1; step < kSharers; step *= 2) before += __shfl_xor_sync(kWholeWarp, before, step);
      if (thread % kSharers == 0 && base + own < entered && before < kPick) picked[before] = one;
    }
  } else {
    uint64_t below = ~uint64_t{0};
    for (int i = 0; i < kPick && below != 0; ++i) {
      below = next_entry(row, args.columns, below);
      if (thread == 0) picked[i] = below;
    }
  }
  __syncthreads();
  if (thread >= kPick) return;
  if (warp == 0) {
    const int token = draw(picked, args.draws[blockIdx.x]);
    if (lane == 0) args.drawn[blockIdx.x] = args.told[blockIdx.x] = token;
  }
  const uint64_t one = picked[thread];
  args.found[blockIdx.x * kPick + thread] =
      one != 0 ? Likely{number_of(static_cast<uint32_t>(one >> 32)), token_of(one)} : Likely{-INFINITY, -1};
}

}  // namespace

TopK::TopK(int64_t max_outputs)
    : max_outputs_(max_outputs),
      largest_(max_outputs * kMostGroups * int64_t{sizeof(uint32_t)}),
      drawn_(max_outputs * int64_t{sizeof(int32_t)}) {
  allocate_pinned(pinned_,
                  kStepSlots * max_outputs * (kMaxTopK * int64_t{sizeof(Likely)} + int64_t{sizeof(int32_t)}));
}
TopK::~TopK() { cudaFreeHost(pinned_); }

void TopK::enqueue(const Context& context, const Rows<float>& logits, int64_t outputs, const Draw* draws,
                   int step_slot) const {
  if (outputs == 0) return;
  const int columns = logits.columns;
  const int each = columns <= kMostGroups ? 1 : (columns + 32 * kMostGroups - 1) / (32 * kMostGroups) * 32;
  const int groups = (columns + each - 1) / each;
  const Args args{logits.data,
                  logits.row_stride,
                  reinterpret_cast<uint32_t*>(largest_.data()),
                  pinned(step_slot),
                  draws,
                  reinterpret_cast<int32_t*>(drawn_.data()),
                  pinned_drawn(step_slot),
                  columns,
                  each,
                  groups};
  const int tasks = each == 1 ? (columns + 31) / 32 : groups;
  launch(
      context, largest_of_groups,
      {dim3(static_cast<unsigned>((tasks + kGroupWarps - 1) / kGroupWarps), static_cast<unsigned>(outputs)),
       dim3(kGroupThreads)},
      args);
  launch(context, find_top_k, {dim3(static_cast<unsigned>(outputs)), dim3(kThreads)}, args);
}

}  // namespace sluice::backend::cuda
