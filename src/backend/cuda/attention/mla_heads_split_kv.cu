// mla_heads for one row and a long context, in three launches: queries (mla_heads_ctx512.cu, a cluster a
// head), attention over all SMs, values. A cache of halves is attended to by wgmma on 9.0
// (mla_heads_split_kv_wgmma.cu); here is attention by the matrix instructions of single warps, for a cache in
// eight bits and for 10.0.
//
// All thread blocks that the device holds share the context evenly, in sixteens of positions, each for up to
// 32 heads. What earlier steps have put into the cache does not depend on this one, so a block asks for its
// first rows before it waits for the queries. Pieces of kPiece rows come to shared memory; a lane of the
// first warp asks for two rows. Of a piece
//   scores   each of four warps has a quarter of the columns, and of two such fours each every other sixteen
//            positions; the quarters meet in shared memory
//   softmax  a warp has some heads, a lane two positions (a running maximum: Milakov and Gimelshein 2018)
//   values   each of eight warps has 64 of the 512 columns for all heads
// Positions or columns are the rows of the matrix instructions, heads their eight columns: 20 heads fill 24.
//
// Then the blocks of a cluster put their parts of the contexts together (join_blocks). What is left is a part
// of a head for each cluster; the values' kernel joins them before it multiplies by v_b. All sums are in one
// order, which the length of the context and the device say.
//
// Bound by the scores: the queries are read from shared memory for every 16 positions, three times the bytes
// of the rows themselves.
#include <cuda_fp16.h>

#include <algorithm>
#include <numbers>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads_split_kv.cuh"
#include "backend/cuda/attention/mla_heads_values.cuh"
#include "backend/cuda/attention/mla_values.cuh"
#include "backend/cuda/host/scratch.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 256, kWarps = 8;
constexpr int kMostClusters = 16;
constexpr int kPiece = 64;                                                // positions
constexpr int kQuarters = 4, kQuarterSteps = kMlaWidth / 16 / kQuarters;  // matrix steps of 16 columns
constexpr int kPieceBytes = kPiece * kMlaPitch;
constexpr int kScoreStride = kPiece + 4, kWeightStride = kPiece + 8;

using Args = SplitKvArgs;

/// How a block's shared memory is divided; offsets in bytes. Contexts that are pushed take the place of rows,
/// those that arrive that of queries and scores.
struct Layout {
  int pushed;  // heads whose contexts are pushed: even, so that their statistics are whole 16 bytes
  int coded, first, second, scores, weights, shrink, stats, incoming_stats, part_weights, nowhere, bytes;

  SLUICE_BOTH Layout(int heads, int tiles, bool is_coded) : pushed((heads + 1) / 2 * 2) {
    const int padded = 8 * tiles, parts = kInCluster * pushed * kPartBytes;
    coded = kPieceBytes;
    first = coded + (is_coded ? kPiece * kMlaQ8Bytes : 0);
    second = first + tiles * SplitQueries::kTileBytes;
    scores = second + tiles * SplitQueries::kTileBytes;
    weights = scores + kQuarters * padded * kScoreStride * 4;
    const int used = weights + padded * kWeightStride * 2;
    shrink = first + parts > used ? first + parts : used;
    stats = shrink + padded * 4;
    incoming_stats = stats + padded * 8;
    part_weights = incoming_stats + kInCluster * pushed * 8;
    nowhere = part_weights + kInCluster * padded * 4;  // what padding would write
    bytes = nowhere + 16;
  }
};
static_assert(kInCluster * 32 * kPartBytes <= kPieceBytes, "contexts fit where rows were");

template <int kTiles, bool kCoded>
__global__ void __maxnreg__(168)
    attend_split_kv(const Timestamps timestamps, const __grid_constant__ Args p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPadded = 8 * kTiles;
  extern __shared__ __align__(128) char split_kv_shared[];
  __shared__ __align__(8) uint64_t barriers[2];
  __shared__ Arrivals parts_there;
  const PdlLink pdl(timestamps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const int first_head = static_cast<int>(blockIdx.y) * kPadded, heads = min(p.heads - first_head, kPadded);
  const Layout layout(heads, kTiles, kCoded);
  const uint32_t rows_there = shared_address(barriers), queries_there = rows_there + 8;
  if (threadIdx.x == 0) {
    barrier_init(rows_there, 1), barrier_init(queries_there, 1);
    BlockParts::expect(parts_there, heads);
  }
  __syncthreads();
  cluster_here();

  // This block's positions.
  const int length = __ldg(p.step.positions) + 1, groups = (length + 15) / 16;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int begin = groups * block / blocks * 16, end = min(groups * (block + 1) / blocks * 16, length);
  const int pieces = (max(0, end - begin) + kPiece - 1) / kPiece;
  constexpr int kBytes = kCoded ? kMlaQ8Bytes : kMlaWidth * 2, kPitch = kCoded ? kMlaQ8Bytes : kMlaPitch;
  char* const rows = split_kv_shared;
  char* const come = kCoded ? split_kv_shared + layout.coded : rows;  // rows as they are in the cache
  const auto count_of = [&](int piece) { return min(kPiece, end - begin - piece * kPiece); };
  // The first warp's: rows of a piece, those of earlier steps or the one that this step adds.
  const auto expect = [&](int piece) {
    if (lane == 0) barrier_expect(rows_there, static_cast<uint32_t>(count_of(piece) * kBytes));
    __syncwarp();
  };
  const auto bring = [&](int piece, bool earlier, bool added) {
    for (int row = lane; row < count_of(piece); row += 32) {
      const int position = begin + piece * kPiece + row;
      if (!(position < length - 1 ? earlier : added)) continue;
      copy_bulk(shared_address(come) + row * kPitch, p.cache.row(p.layer, p.step.slot_of(0, position)),
                kBytes, rows_there);
    }
  };
  if (warp == 0 && pieces > 0) expect(0), bring(0, true, false);

  pdl.wait();
  cluster_all();  // they have begun
  const int first_tile = static_cast<int>(blockIdx.y) * kTiles;
  constexpr int kQueryBytes = kTiles * SplitQueries::kTileBytes;
  if (warp == 0) {
    // The row was written by ordinary stores, TMA reads it.
    asm volatile("fence.proxy.async;" ::: "memory");
    if (lane == 0) {
      barrier_expect(queries_there, 2 * kQueryBytes);
      const int64_t from = int64_t{first_tile} * SplitQueries::kTileBytes / 4;
      copy_bulk(shared_address(split_kv_shared + layout.first), p.queries.first + from, kQueryBytes,
                queries_there);
      copy_bulk(shared_address(split_kv_shared + layout.second), p.queries.second + from, kQueryBytes,
                queries_there);
    }
    if (pieces > 0) bring(0, false, true);
  }
  float factor[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    factor[i] = p.scale_log2 * __ldcg(p.queries.unscale + first_head + min(i * kWarps + warp, heads - 1));

  float* const scores = reinterpret_cast<float*>(split_kv_shared + layout.scores);
  uint16_t* const weights = reinterpret_cast<uint16_t*>(split_kv_shared + layout.weights);
  float* const shrink = reinterpret_cast<float*>(split_kv_shared + layout.shrink);
  const auto* const first = reinterpret_cast<const uint2*>(split_kv_shared + layout.first);
  const auto* const second = reinterpret_cast<const uint2*>(split_kv_shared + layout.second);
  // Of heads i * kWarps + warp: the largest score, the sum of this lane's weights.
  float largest[kTiles], all[kTiles];
  QueryColumnSums<kTiles> sum;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) largest[i] = -INFINITY, all[i] = 0;
  const int quarter = warp % kQuarters, half = warp / kQuarters;

  barrier_wait(queries_there, 0);

  for (int piece = 0; piece < pieces; ++piece) {
    const int count = count_of(piece);
    barrier_wait(rows_there, static_cast<uint32_t>(piece % 2));
    if (kCoded) decode_rows<kThreads>(rows, come, count);
    const int whole = (count + 15) / 16 * 16;
    if (count < whole) {
      // Rows that are not there: weights of zero do not make up for what is no number.
      constexpr int kUnits = kMlaWidth * 2 / 16;
      for (int i = threadIdx.x; i < (whole - count) * kUnits; i += kThreads) {
        const int row = i / kUnits, unit = i - row * kUnits;
        reinterpret_cast<uint4*>(rows + (count + row) * kMlaPitch)[unit] = {0, 0, 0, 0};
      }
    }
    if (kCoded || count < whole) __syncthreads();
    const uint32_t at_rows = shared_address(rows);

#pragma unroll 1
    for (int at = half * 16; at < count; at += 32) {
      float score[2][kTiles][4] = {};  // positions by heads; of the queries' first and second halves
#pragma unroll
      for (int s = 0; s < kQuarterSteps; ++s) {
        const int step = quarter * kQuarterSteps + s;
        uint32_t key[4];
        load_matrices(key, at_rows + (at + lane % 16) * kMlaPitch + (step * 16 + lane / 16 * 8) * 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint2 high = first[SplitQueries::at(i, step, lane)],
                      low = second[SplitQueries::at(i, step, lane)];
          mma_16x8x16(score[0][i], key, high.x, high.y);
          mma_16x8x16(score[1][i], key, low.x, low.y);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        float* const to = scores + (quarter * kPadded + 8 * i + 2 * t) * kScoreStride + at + g;
#pragma unroll
        for (int k = 0; k < 4; ++k) to[k % 2 * kScoreStride + k / 2 * 8] = score[0][i][k] + score[1][i][k];
      }
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int head = i * kWarps + warp;
      float2 value{0, 0};
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
        const float2 part =
            *reinterpret_cast<const float2*>(scores + (k * kPadded + head) * kScoreStride + 2 * lane);
        value.x += part.x, value.y += part.y;
      }
      value.x = 2 * lane < count ? value.x * factor[i] : -INFINITY;
      value.y = 2 * lane + 1 < count ? value.y * factor[i] : -INFINITY;
      const float now = fmaxf(largest[i], lane_max(fmaxf(value.x, value.y))), keep = exp2f(largest[i] - now);
      largest[i] = now;
      value.x = exp2f(value.x - now), value.y = exp2f(value.y - now);
      all[i] = all[i] * keep + value.x + value.y;
      *reinterpret_cast<uint32_t*>(weights + head * kWeightStride + 2 * lane) = pack_halves(value.x, value.y);
      if (lane == 0) shrink[head] = keep;
    }
    __syncthreads();

    if (piece > 0) sum.rescale(shrink);
#pragma unroll 1
    for (int at = 0; at < count; at += 16)
      sum.template add<kWeightStride>(weights + at, at_rows + at * kMlaPitch);
    __syncthreads();
    if (warp == 0 && piece + 1 < pieces) expect(piece + 1), bring(piece + 1, true, true);
  }
  cluster_here();  // what will arrive takes the place of queries and scores

  // This block's part of the context, halves, by who puts its columns together: [block][head][64 columns].
  const BlockParts parts{heads,
                         split_kv_shared,
                         split_kv_shared + layout.first,
                         reinterpret_cast<float2*>(split_kv_shared + layout.stats),
                         reinterpret_cast<float2*>(split_kv_shared + layout.incoming_stats),
                         reinterpret_cast<float*>(split_kv_shared + layout.part_weights),
                         &parts_there};
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float total = lane_sum(all[i]);
    if (lane == 0) parts.stats[i * kWarps + warp] = {largest[i], total};
  }
  __syncthreads();
  static_assert(kJoinedColumns == 64, "a warp's columns are a block's");
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float x = parts.stats[8 * i + 2 * t].y, y = parts.stats[8 * i + 2 * t + 1].y;
    const float2 inverse = {x > 0 ? 1 / x : 0.0f, y > 0 ? 1 / y : 0.0f};
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
      const uint32_t pairs[4] = {
          pack_halves(sum.of[m][i][0] * inverse.x, sum.of[m][i][1] * inverse.y),
          pack_halves(sum.of[m][i][2] * inverse.x, sum.of[m][i][3] * inverse.y),
          pack_halves(sum.of[m + 1][i][0] * inverse.x, sum.of[m + 1][i][1] * inverse.y),
          pack_halves(sum.of[m + 1][i][2] * inverse.x, sum.of[m + 1][i][3] * inverse.y)};
      const int head = 8 * i + lane % 8;
      store_matrices_transposed(
          shared_address(head < layout.pushed ? parts.outgoing + warp * parts.slice() + head * kPartBytes +
                                                    (m * 16 + lane / 8 * 8) * 2
                                              : split_kv_shared + layout.nowhere),
          pairs);
    }
  }
  pushes_from_here();
  static_assert(kInCluster * 32 <= kThreads && kJoinedColumns / 8 * 32 <= kThreads);
  join_blocks<kPadded>(p, parts, first_head);
#endif
}

using AttendKernel = void (*)(Timestamps, Args);
AttendKernel kernel_of(int tiles, bool coded) {
  switch (tiles) {
    case 1:
    case 2: return coded ? attend_split_kv<2, true> : attend_split_kv<2, false>;
    case 3: return coded ? attend_split_kv<3, true> : attend_split_kv<3, false>;
    default: return coded ? attend_split_kv<4, true> : attend_split_kv<4, false>;
  }
}

/// What the launches leave for each other.
struct Parts {
  SplitQueries queries;
  float2* weights;
  uint16_t* parts;
  int64_t bytes;

  Parts(char* base, int64_t heads) {
    Scratch scratch(base);
    const auto take = [&]<typename T>(T*& place, int64_t count) { place = scratch.take<T>(count); };
    const int64_t padded = (heads + 31) / 32 * 32;
    take(queries.first, SplitQueries::words(padded));
    take(queries.second, SplitQueries::words(padded));
    take(queries.unscale, padded);
    take(weights, kMostClusters * heads);
    take(parts, kMostClusters * heads * kMlaRank);
    bytes = scratch.bytes();
  }
};

int tiles_for(int64_t heads) { return static_cast<int>(std::clamp<int64_t>((heads + 7) / 8, 2, 4)); }
Layout layout_for(int64_t heads, bool coded) {
  const int tiles = tiles_for(heads);
  return {static_cast<int>(std::min<int64_t>(heads, 8 * tiles)), tiles, coded};
}

/// Starts attention by the kernel above; how many clusters it has, parts of a head.
int attend_by_warps(const SplitKvArgs& args, const Context& context) {
  const int tiles = tiles_for(args.heads);
  const bool coded = args.cache.coded > 0;
  const auto kernel = kernel_of(tiles, coded);
  LaunchShape shape{dim3(kInCluster, static_cast<unsigned>((args.heads + 8 * tiles - 1) / (8 * tiles))),
                    dim3(kThreads), layout_for(args.heads, coded).bytes, kInCluster};
  const int clusters = std::clamp(most_clusters(kernel, shape), 1, kMostClusters);
  shape.grid.x = static_cast<unsigned>(clusters * kInCluster);
  launch(context, kernel, shape, args);
  return clusters;
}

}  // namespace

bool split_kv_fits(int64_t heads, bool coded) {
  constexpr int kMostBytes = 227 * 1024;  // of compute capabilities 9.0 and 10.0
  return layout_for(heads, coded).bytes <= kMostBytes;
}

int64_t split_kv_scratch_bytes(int64_t heads) { return Parts(nullptr, heads).bytes; }

void start_split_kv(const MlaHeadsArgs& args, const Context& context) {
  const int heads = args.out.heads;
  const Parts parts(context.scratch, heads);
  const bool by_wgmma = args.cache.coded == 0 && context.architecture == 90;
  MlaHeadsArgs first = args;
  first.v_b = {}, first.form_at = nullptr, first.split = parts.queries;
  if (by_wgmma) first.split.second = nullptr;  // put_query_rows: both halves of a number from `first` on
  start_clusters(first, context);

  const SplitKvArgs split_kv{args.step,     args.cache, first.split,
                             args.layer,    heads,      args.scale * std::numbers::log2e_v<float>,
                             parts.weights, parts.parts};
  const int clusters =
      by_wgmma ? attend_by_wgmma(split_kv, kMostClusters, context) : attend_by_warps(split_kv, context);
  join_values<kMostClusters>({args.out, args.v_b, clusters, args.form_at, parts.weights, parts.parts},
                             context);
}

}  // namespace sluice::backend::cuda
