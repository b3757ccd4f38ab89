// Attention of mla_heads for one row and a long context by wgmma (sm_90a), a cache of halves: the second of
// the three launches of mla_heads_split_kv.cu.
//
// All thread blocks that the device holds share the context evenly, in sixteens of positions, each for up to
// 32 heads. A block's positions come in pieces, a ring of them in shared memory, by TMA copies of eight rows:
// nine blocks of 64 columns, swizzled, so that a row is read as it lies both as key and as value. What
// earlier steps have cached does not depend on this one: a block asks for its first pieces before it waits
// for the queries. Three parties, each of a piece of its own:
//
//   a warp        asks for pieces
//   a warpgroup   scores, heads by positions (64 x 576 by 576 x 48; a head is two rows: the halves of its
//                 query, and what these leave), softmax with a running maximum, weights as halves
//   a warpgroup   weighed values, columns by heads (512 x positions by positions x heads), in registers
//
// Rows go from shared memory to the tensor cores past the registers.
//
// Then the blocks of a cluster push their parts of the contexts to each other: block r puts 64 columns of all
// of them together. What is left is a part of a head for each cluster; the values' kernel joins them. All
// sums are in one order, which the length of the context and the device say.
//
// Bound by memory at depth, 1,152 bytes a position for all heads; by the chain of steps around that before.
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads_split_kv.cuh"
#include "backend/cuda/host/tensor_map.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/wgmma_narrow.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kGroup = 128, kThreads = 2 * kGroup + 32;              // scores, values; what brings pieces
constexpr int kRows = kMapRows, kCopyBytes = kRows * kMlaWidth * 2;  // of a copy

/// How a block's shared memory is divided; offsets in bytes. Contexts that are pushed take the place of
/// pieces, those that arrive that of queries. Behind the queries' rows an instruction reads what nobody
/// wants.
template <int kTilesMost>
struct Layout {
  static constexpr int kTiles = kTilesMost, kHeads = 8 * kTiles;
  static constexpr int kPiece = 48, kSlots = 2;  // positions of a piece; pieces
  static constexpr int kSlotBytes = kPiece / kRows * kCopyBytes, kQueryBytes = 2 * kTiles * kCopyBytes;
  static constexpr int kWeightBytes = kTiles * 1024;
  static constexpr int kRowsAt = kQueryBytes;                     // pieces
  static constexpr int kWeights = kRowsAt + kSlots * kSlotBytes;  // of two, [head][64 positions], swizzled
  static constexpr int kShrink = kWeights + 2 * kWeightBytes;     // of two pieces, [head]
  static constexpr int kStats = kShrink + 2 * kHeads * 4;
  static constexpr int kIncomingStats = kStats + kHeads * 8;
  static constexpr int kPartWeights = kIncomingStats + kInCluster * kHeads * 8;
  static constexpr int kNowhere = kPartWeights + kInCluster * kHeads * 4;  // what padding would write
  static constexpr int kBarriers = kNowhere + 16;
  static constexpr int kBytes = kBarriers + (2 * kSlots + 6) * 8;
  static_assert(kInCluster * kHeads * kPartBytes <= kQueryBytes && kQueryBytes <= kSlots * kSlotBytes);
  static_assert(8 * kCopyBytes <= kBytes && kBytes <= 227 * 1024);
};

struct Args : SplitKvArgs {
  CUtensorMap rows;  // of the cache
};

#ifdef SLUICE_WGMMA

/// What the parties of a block share.
struct Work {
  char* shared;
  uint32_t at, rows_at;                  // its address, that of pieces
  uint32_t full, used;                   // [slot], barriers: a piece is here; its values are added
  uint32_t weights_there, weights_used;  // [2]
  uint32_t queries_there;
  int first_head, heads, rank;
  int begin, end, pieces;  // positions
  bool last;               // of all blocks: they end with the row that this step adds

  __device__ int count(int piece, int each) const { return min(each, end - begin - piece * each); }
};

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A warp: asks for pieces as they have room, and for the queries.
template <typename L>
__device__ __forceinline__ void bring(const Args& p, const PdlLink& pdl, const Work& w) {
  const int lane = threadIdx.x % 32;
  const auto bring_piece = [&](int piece) {
    const int slot = piece % L::kSlots, copies = (w.count(piece, L::kPiece) + kRows - 1) / kRows;
    const int64_t place = p.step.slot_of(
        0, w.begin + piece * L::kPiece + min(lane, copies - 1) * kRows);  // eight are in one page
    const int64_t row = (place / program::kPageRows * p.cache.layers + p.layer) * program::kPageRows +
                        place % program::kPageRows;
    barrier_wait(w.used + 8 * slot, (piece / L::kSlots & 1) ^ 1);
    if (lane == 0) barrier_expect(w.full + 8 * slot, static_cast<uint32_t>(copies * kCopyBytes));
    __syncwarp();
    if (lane < copies) {
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(w.rows_at + slot * L::kSlotBytes + lane * kCopyBytes),
          "l"(&p.rows), "r"(0), "r"(static_cast<int>(row)), "r"(0), "r"(w.full + 8 * slot)
          : "memory");
    }
    __syncwarp();
  };
  // What earlier steps have cached.
  const int early = min(w.pieces - (w.last ? 1 : 0), L::kSlots);
  for (int piece = 0; piece < early; ++piece) bring_piece(piece);
  pdl.wait();
  if (lane == 0) {
    // A share of the queries, for all blocks of the cluster.
    constexpr int kShare = L::kQueryBytes / kInCluster;
    static_assert(kShare % 16 == 0);
    const char* const queries =
        reinterpret_cast<const char*>(p.queries.first) + w.first_head / 4 * kCopyBytes;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
        "%2, "
        "[%3], %4;" ::"r"(w.at + w.rank * kShare),
        "l"(queries + w.rank * kShare), "r"(kShare), "r"(w.queries_there),
        "h"(static_cast<uint16_t>((1 << kInCluster) - 1))
        : "memory");
  }
  // The last row was written by ordinary stores, TMA reads it.
  if (w.last) asm volatile("fence.proxy.async;" ::: "memory");
  for (int piece = early; piece < w.pieces; ++piece) bring_piece(piece);
}

/// A warpgroup: scores of pieces and their weights; at last the statistics of all. A warp has eight heads,
/// two rows each: their queries' halves, and what these leave.
template <typename L>
__device__ __forceinline__ void weigh(const Args& p, const Work& w, float2* stats) {
  constexpr int kEights = L::kPiece / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int head = warp * 8 + g;
  const float factor = p.scale_log2 * __ldcg(p.queries.unscale + w.first_head + min(head, w.heads - 1));
  float largest = -INFINITY, all = 0;  // the largest score, the sum of this thread's weights
  const uint64_t queries = matrix_descriptor(w.at, kCopyBytes);
  barrier_wait(w.queries_there, 0);
  for (int piece = 0; piece < w.pieces; ++piece) {
    const int slot = piece % L::kSlots, two = piece % 2, count = w.count(piece, L::kPiece);
    barrier_wait(w.full + 8 * slot, piece / L::kSlots & 1);
    if (count % 16 != 0) {
      // Rows that are not there: weights of zero do not make up for what is no number.
      constexpr int kUnits = kMlaWidth * 2 / 16;
      for (int i = threadIdx.x; i < (16 - count % 16) * kUnits; i += kGroup) {
        const int row = count + i / kUnits, unit = i % kUnits;
        char* const eight = w.shared + L::kRowsAt + slot * L::kSlotBytes + row / kRows * kCopyBytes;
        reinterpret_cast<uint4*>(eight + unit / 8 * 1024 + row % kRows * 128)[unit % 8] = {0, 0, 0, 0};
      }
    }
    float score[kEights][4];  // of positions 8 i + 2 t and the next one, by both rows of the head
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) score[i / 4][i % 4] = 0;
    const uint64_t keys = matrix_descriptor(w.rows_at + slot * L::kSlotBytes, kCopyBytes);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kMlaWidth / 16; ++s) {
      const int at = (s / 4 * 1024 + s % 4 * 32) >> 4;
      wgmma_64x16_narrow<false>(score, queries + at, keys + at);
    }
    wgmma_commit();
    wgmma_wait<0>();

    float2 value[kEights];
    float now = largest;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      value[i].x = 8 * i + 2 * t < count ? (score[i][0] + score[i][2]) * factor : -INFINITY;
      value[i].y = 8 * i + 2 * t + 1 < count ? (score[i][1] + score[i][3]) * factor : -INFINITY;
      now = fmaxf(now, fmaxf(value[i].x, value[i].y));
    }
    now = lane_max(now, 4);
    const float keep = exp2f(largest - now);
    largest = now, all *= keep;
    barrier_wait(w.weights_used + 8 * two, (piece / 2 & 1) ^ 1);
    if (warp < L::kTiles) {
      char* const weights = w.shared + L::kWeights + two * L::kWeightBytes + warp * 1024 + g * 128 + t * 4;
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float a = exp2f(value[i].x - now), b = exp2f(value[i].y - now);
        all += a + b;
        *reinterpret_cast<uint32_t*>(weights + (i ^ g) * 16) = pack_halves(a, b);
      }
      if (t == 0) reinterpret_cast<float*>(w.shared + L::kShrink)[two * L::kHeads + head] = keep;
    }
    fence_async();
    barrier_arrive(w.weights_there + 8 * two);
  }
  all = lane_sum(all, 4);
  if (warp < L::kTiles && t == 0) stats[head] = {largest, all};
  pushes_from_here();
}

/// A warpgroup: weighed values of all pieces. Of each 64 columns a warp has 16, as the rows of mma_16x8x16.
template <typename L>
__device__ __forceinline__ void add_values(const Work& w, float (&sum)[8][L::kTiles][4]) {
  const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 32 * L::kTiles; ++i) sum[i / (4 * L::kTiles)][i / 4 % L::kTiles][i % 4] = 0;
  for (int piece = 0; piece < w.pieces; ++piece) {
    const int slot = piece % L::kSlots, two = piece % 2, count = w.count(piece, L::kPiece);
    barrier_wait(w.weights_there + 8 * two, piece / 2 & 1);
    const float* const shrink = reinterpret_cast<const float*>(w.shared + L::kShrink) + two * L::kHeads;
#pragma unroll
    for (int i = 0; piece > 0 && i < L::kTiles; ++i) {
      const float2 keep = *reinterpret_cast<const float2*>(shrink + 8 * i + 2 * t);
#pragma unroll
      for (int m = 0; m < 8; ++m)
        sum[m][i][0] *= keep.x, sum[m][i][1] *= keep.y, sum[m][i][2] *= keep.x, sum[m][i][3] *= keep.y;
    }
    const uint64_t values = matrix_descriptor(w.rows_at + slot * L::kSlotBytes, kCopyBytes);
    const uint64_t weights = matrix_descriptor(w.at + L::kWeights + two * L::kWeightBytes, 1024);
    const auto add = [&]<int kSteps>() {  // sixteens of positions
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int m = 0; m < 8; ++m)
          wgmma_64x16_narrow<true>(sum[m], values + ((s * 2 * kCopyBytes + m * 1024) >> 4),
                                   weights + (s * 32 >> 4));
      }
      wgmma_commit();
      wgmma_wait<0>();
    };
    static_assert(L::kPiece == 48);
    if (count > 32) {
      add.template operator()<3>();
    } else if (count > 16) {
      add.template operator()<2>();
    } else {
      add.template operator()<1>();
    }
    barrier_arrive(w.weights_used + 8 * two);
    if (lane == 0) barrier_arrive(w.used + 8 * slot);
  }
}

#endif

template <typename L>
__global__ void __launch_bounds__(kThreads, 1)
    attend_wgmma(const Timestamps timestamps, const __grid_constant__ Args p) {
#ifdef SLUICE_WGMMA
  extern __shared__ __align__(1024) char wgmma_shared[];
  char* const shared = wgmma_shared;
  const PdlLink pdl(timestamps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t barriers = shared_address(shared + L::kBarriers);
  auto& parts_there = *reinterpret_cast<Arrivals*>(shared + L::kBytes - sizeof(Arrivals));
  Work w{};
  w.shared = shared, w.at = shared_address(shared), w.rows_at = w.at + L::kRowsAt;
  w.full = barriers, w.used = w.full + 8 * L::kSlots, w.weights_there = w.used + 8 * L::kSlots;
  w.weights_used = w.weights_there + 16, w.queries_there = w.weights_used + 16;
  w.first_head = static_cast<int>(blockIdx.y) * L::kHeads, w.heads = min(p.heads - w.first_head, L::kHeads);
  w.rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < L::kSlots; ++i) barrier_init(w.full + 8 * i, 1), barrier_init(w.used + 8 * i, 4);
    for (int i = 0; i < 2; ++i)
      barrier_init(w.weights_there + 8 * i, kGroup), barrier_init(w.weights_used + 8 * i, kGroup);
    barrier_init(w.queries_there, 1);
    BlockParts::expect(parts_there, w.heads);
    barrier_expect(w.queries_there, L::kQueryBytes);
  }
  __syncthreads();
  cluster_here();

  // This block's positions.
  const int length = __ldg(p.step.positions) + 1, sixteens = (length + 15) / 16;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  w.begin = sixteens * block / blocks * 16, w.end = min(sixteens * (block + 1) / blocks * 16, length);
  w.pieces = (max(0, w.end - w.begin) + L::kPiece - 1) / L::kPiece;
  w.last = w.end == length && w.begin < w.end;
  const BlockParts parts{w.heads,
                         shared + L::kRowsAt,
                         shared,
                         reinterpret_cast<float2*>(shared + L::kStats),
                         reinterpret_cast<float2*>(shared + L::kIncomingStats),
                         reinterpret_cast<float*>(shared + L::kPartWeights),
                         &parts_there};
  float sum[8][L::kTiles][4];  // of 64 columns, of eight heads
  const bool has_sums = warp >= kGroup / 32 && warp < 2 * kGroup / 32;
  if (warp < kGroup / 32) {
    pdl.wait();
    cluster_all();
    weigh<L>(p, w, parts.stats);
  } else if (has_sums) {
    cluster_all();
    add_values<L>(w, sum);
  } else {
    cluster_all();  // the others have begun
    bring<L>(p, pdl, w);
  }
  cluster_here();  // what will arrive takes the place of queries
  __syncthreads();

  // This block's part of the context, halves, by who puts its columns together.
  if (has_sums) {
    static_assert(kJoinedColumns == 64, "an instruction's columns are a block's");
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < L::kTiles; ++i) {
      const float x = parts.stats[8 * i + 2 * t].y, y = parts.stats[8 * i + 2 * t + 1].y;
      const float2 inverse = {x > 0 ? 1 / x : 0.0f, y > 0 ? 1 / y : 0.0f};
#pragma unroll
      for (int m = 0; m < 8; m += 2) {
        const uint32_t pairs[4] = {pack_halves(sum[m][i][0] * inverse.x, sum[m][i][1] * inverse.y),
                                   pack_halves(sum[m][i][2] * inverse.x, sum[m][i][3] * inverse.y),
                                   pack_halves(sum[m + 1][i][0] * inverse.x, sum[m + 1][i][1] * inverse.y),
                                   pack_halves(sum[m + 1][i][2] * inverse.x, sum[m + 1][i][3] * inverse.y)};
        const int head = 8 * i + lane % 8;
        char* const to = parts.outgoing + (m + lane / 16) * parts.slice() + head * kPartBytes +
                         (warp % 4 * 16 + lane / 8 % 2 * 8) * 2;
        store_matrices_transposed(shared_address(head < parts.pushed(w.heads) ? to : shared + L::kNowhere),
                                  pairs);
      }
    }
    pushes_from_here();
  }
  static_assert(kInCluster * 32 <= kThreads && kJoinedColumns / 8 * 32 <= kThreads);
  join_blocks<L::kHeads>(p, parts, w.first_head);
#endif
}

}  // namespace

int attend_by_wgmma(const SplitKvArgs& args, int most_parts, const Context& context) {
  const auto start = [&]<int kTiles>() {
    using L = Layout<kTiles>;
    const auto kernel = attend_wgmma<L>;
    const int groups = (args.heads + L::kHeads - 1) / L::kHeads;
    LaunchShape shape{dim3(kInCluster, static_cast<unsigned>(groups)), dim3(kThreads), L::kBytes, kInCluster};
    const int clusters = std::clamp(most_clusters(kernel, shape), 1, most_parts);
    shape.grid.x = static_cast<unsigned>(clusters * kInCluster);
    // How many rows the cache has is nothing that a kernel is told; the pages' table says where they are.
    constexpr int64_t kMostRows = int64_t{1} << 30;
    const auto* const cache = reinterpret_cast<const uint8_t*>(args.cache.data);
    launch(context, kernel, shape,
           Args{args, map_rows(cache, kMlaWidth * 2, kMostRows, kMlaWidth * 2 / kMapLine)});
    return clusters;
  };
  return args.heads <= 16   ? start.operator()<2>()
         : args.heads <= 24 ? start.operator()<3>()
                            : start.operator()<4>();
}

}  // namespace sluice::backend::cuda
