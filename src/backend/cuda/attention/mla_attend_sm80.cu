// mla_attend on tensor cores within 99 KB of shared memory and without what 9.0 has (any processor since
// sm_80): pieces of 32 positions, half a page, where the kernels of 9.0 hold two pages. A thread block takes
//   few rows    16 heads of a row over a chunk of its context; join_chunks puts chunks together
//   many rows   32 queries, the heads of neighbouring rows of a sequence, over their whole context
//   together    the same in a step of one sequence, over a chunk of its context
//
// Two pieces are in shared memory, one on its way while the other is worked on (cp.async); keys and values
// are the same numbers. Queries live in registers.
//   scores   each of four warps has a quarter of the columns, and of two such fours each 16 positions: so
//            a piece is read once for them; the quarters meet in shared memory
//   softmax  a warp has some queries, a lane a position (a running maximum, online softmax: Milakov and
//            Gimelshein 2018)
//   values   each of eight warps has 64 of the 512 columns for all queries
// A cache in eight bits: a piece comes as it is to where the second piece would be, and is made halves before
// it is worked on, while the next one comes.
//
// Few rows split a query into two halves (high, and the rounding error of high), so that scores of hundreds
// stay right; many rows have one. A row's bits depend on its own context and the bucket alone.
//
// Bound by the tensor cores: 544 instructions for 32 queries and positions, 4,400 cycles where a unit takes
// 32 for each (RTX 3090, 4090), 800 on an H200.
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_values.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {
namespace {

using program::kPageRows;

constexpr int kThreads = 256, kWarps = 8, kPiece = 32;
constexpr int kQuarters = 4, kSteps = kMlaWidth / 16, kQuarterSteps = kSteps / kQuarters;
constexpr int kPieceBytes = kPiece * kMlaPitch;
constexpr int kScoreStride = kPiece + 8, kWeightStride = kPiece + 8;
static_assert(kPageRows % kPiece == 0, "a piece lies in one page");

/// By tiles of 16 queries.
constexpr int shared_bytes(int tiles) {
  const int queries = 16 * tiles;
  return 2 * kPieceBytes + kQuarters * queries * kScoreStride * 4 + queries * kWeightStride * 2 +
         2 * queries * 4;
}
static_assert(shared_bytes(2) <= kMostShared);
static_assert(2 * kSteps * 32 * 16 <= kPieceBytes, "queries become operands where a piece will be");
static_assert(kPiece * kMlaQ8Bytes <= kPieceBytes);

/// Brings a piece's rows to shared memory, eight threads a row; rows from `count` on become zeroes.
__device__ __forceinline__ void bring_rows(uint32_t to, const char* rows, int count) {
  const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
  const bool there = row < count;
  const char* const from = rows + (there ? row : 0) * kMlaWidth * 2 + unit * 16;
  to += row * kMlaPitch + unit * 16;
#pragma unroll
  for (int k = 0; k < kMlaWidth / 64; ++k) copy_async(to + k * 128, from + k * 128, there);
  commit_copies();
}

/// The same of rows in eight bits, as they are.
__device__ __forceinline__ void bring_codes(uint32_t to, const char* rows, int count) {
  constexpr int kUnits = kMlaQ8Bytes / 16;
  for (int i = threadIdx.x; i < kPiece * kUnits; i += kThreads) {
    const bool there = i < count * kUnits;
    copy_async(to + i * 16, rows + (there ? i : 0) * 16, there);
  }
  commit_copies();
}

/// What a thread block does: queries, and the positions that they meet.
struct Work {
  Queries q;
  int begin, end;
};

/// Few rows: grid (chunks, rows, heads by 16).
__device__ __forceinline__ Work chunk_work(const MlaArgs& p) {
  const int row = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * 16;
  if (row >= p.step.header->rows) return {};
  const int length = p.step.positions[row] + 1, rows = chunk_of(length, p.most_chunks);
  const int begin = static_cast<int>(blockIdx.x) * rows;
  return {{row, first, min(16, p.q.heads - first), length}, begin, min(begin + rows, length)};
}

/// 32 queries of a step of one sequence, over chunk `number` of the last row's context.
__device__ __forceinline__ Work work_together(const MlaArgs& p, int tile, int number) {
  const int first = tile * kSmallTileQueries, length = p.length_of(0);
  const int rows = chunk_of(length, p.most_chunks);
  return {{0, first, min(kSmallTileQueries, p.step.header->rows * p.q.heads - first), length},
          number * rows,
          min((number + 1) * rows, length)};
}

/// Few: 16 queries of one row, two halves each; otherwise 32 of several rows, in a step of one sequence with
/// chunks of their context as the grid's y.
template <bool kSplitKv, bool kCoded>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const Timestamps timestamps, const __grid_constant__ MlaArgs p, int tiles_of_group) {
  constexpr int kTiles = kSplitKv ? 1 : 2, kQueries = 16 * kTiles, kMine = kQueries / kWarps;
  extern __shared__ __align__(128) char sm80_shared[];
  float* const scores = reinterpret_cast<float*>(sm80_shared + 2 * kPieceBytes);
  uint16_t* const weights = reinterpret_cast<uint16_t*>(scores + kQuarters * kQueries * kScoreStride);
  float* const shrink = reinterpret_cast<float*>(weights + kQueries * kWeightStride);
  float* const total = shrink + kQueries;
  const PdlLink pdl(timestamps);
  pdl.wait();
  Work work;
  if constexpr (kSplitKv) {
    work = chunk_work(p);
  } else if (p.together) {
    work = work_together(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  } else {
    // Later rows see more: they begin first.
    work.q = queries_of(p, kQueries, static_cast<int>(gridDim.x - 1 - blockIdx.x), tiles_of_group);
    work.begin = 0, work.end = work.q.longest;
  }
  const Queries& q = work.q;
  if (q.count <= 0 || work.begin >= work.end) return;
  const uint32_t pieces = shared_address(sm80_shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int heads = p.q.heads, quarter = warp % kQuarters, half = warp / kQuarters;

  const auto rows_from = [&](int from) { return p.cache.row(p.layer, p.step.slot_of(q.first_row, from)); };
  const auto bring = [&](int buffer, const char* rows, int from) {
    const int count = min(kPiece, work.end - from);
    kCoded ? bring_codes(pieces + kPieceBytes, rows, count)
           : bring_rows(pieces + buffer * kPieceBytes, rows, count);
  };
  bring(0, rows_from(work.begin), work.begin);
  // The next piece's rows, looked up a piece ahead.
  const char* next = work.begin + kPiece < work.end ? rows_from(work.begin + kPiece) : nullptr;

  // Queries: a power of two each keeps them far from the ends of a half's range. They become operands where
  // the other piece will be, a lane's together, and go on to registers.
  constexpr int kEach = kMlaWidth / 64;  // pairs of columns 2 lane + 64 m of a query
  float2 loaded[kMine][kEach];
  float factor[kMine];
  int limit[kMine];  // positions that it sees
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int query = q.first_query + min(warp * kMine + i, q.count - 1), row = q.first_row + query / heads;
    limit[i] = min(work.end, p.step.positions[row] + 1);
    const auto* const from = reinterpret_cast<const float2*>(p.q(row, query % heads)) + lane;
#pragma unroll
    for (int m = 0; m < kEach; ++m) loaded[i][m] = from[32 * m];
  }
  auto* const firsts = reinterpret_cast<uint32_t*>(sm80_shared + (kCoded ? 0 : kPieceBytes));
  auto* const rests = firsts + kSteps * 32 * 4;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int mine = warp * kMine + i;
    float most = 0;
#pragma unroll
    for (int m = 0; m < kEach; ++m) most = fmaxf(most, fmaxf(fabsf(loaded[i][m].x), fabsf(loaded[i][m].y)));
    const float unscale = query_unscale(lane_max(most)), scale = 1.0f / unscale;
    factor[i] = p.scale_log2 * unscale;
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      const float2 v{loaded[i][m].x * scale, loaded[i][m].y * scale};
      const __half2 first = __floats2half2_rn(v.x, v.y);
      // Operand: step of 16 columns, tile of queries, lane, word: row g or g + 8, columns 2t or 2t + 8.
      const int step = lane / 8 + 4 * m, word = mine / 8 % 2 + lane / 4 % 2 * 2;
      const int at = (((step * kTiles + mine / 16) * 8 + mine % 8) * 4 + lane % 4) * 4 + word;
      firsts[at] = *reinterpret_cast<const uint32_t*>(&first);
      if (kSplitKv) rests[at] = pack_halves(v.x - __low2float(first), v.y - __high2float(first));
    }
  }
  __syncthreads();
  uint32_t query[kTiles][kQuarterSteps][4], rest[kSplitKv ? kQuarterSteps : 1][4];
#pragma unroll
  for (int s = 0; s < kQuarterSteps; ++s) {
    const auto operand = [&](const uint32_t* of, int i, uint32_t(&to)[4]) {
      const uint4 v =
          reinterpret_cast<const uint4*>(of)[((quarter * kQuarterSteps + s) * kTiles + i) * 32 + lane];
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    };
#pragma unroll
    for (int i = 0; i < kTiles; ++i) operand(firsts, i, query[i][s]);
    if (kSplitKv) operand(rests, 0, rest[s]);
  }

  QueryRowSums<kTiles> sum;
  float largest[kMine], all[kMine];  // all: this lane's weights
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    // Of rows together some may see nothing of the last chunk: its weights are wiped out by the others'.
    largest[i] = p.together ? -0x1p100f : -INFINITY, all[i] = 0;
  }

  int buffer = 0;
  for (int from = work.begin; from < work.end; from += kPiece, buffer ^= kCoded ? 0 : 1) {
    wait_copies<0>();
    __syncthreads();  // it is there, and everybody has done with the one before, or with the queries
    if (kCoded) {
      decode_rows<kThreads>(sm80_shared, sm80_shared + kPieceBytes, kPiece);
      __syncthreads();
    }
    if (from + kPiece < work.end) {
      bring(buffer ^ 1, next, from + kPiece);
      if (from + 2 * kPiece < work.end) next = rows_from(from + 2 * kPiece);
    }
    const uint32_t piece = pieces + buffer * kPieceBytes;

    float score[kTiles][2][4] = {};
#pragma unroll
    for (int s = 0; s < kQuarterSteps; ++s) {
      uint32_t key[4];  // positions 0..7 columns 0..7 and 8..15, positions 8..15 likewise
      const int position = half * 16 + lane / 16 * 8 + lane % 8;
      const int column = (quarter * kQuarterSteps + s) * 16 + lane / 8 % 2 * 8;
      load_matrices(key, piece + position * kMlaPitch + column * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        mma_16x8x16(score[i][0], query[i][s], key[0], key[1]);
        mma_16x8x16(score[i][1], query[i][s], key[2], key[3]);
      }
      if (kSplitKv) {
        mma_16x8x16(score[0][0], rest[s], key[0], key[1]);
        mma_16x8x16(score[0][1], rest[s], key[2], key[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float* const at =
              scores + (quarter * kQueries + 16 * i + 8 * h + g) * kScoreStride + half * 16 + n * 8 + 2 * t;
          *reinterpret_cast<float2*>(at) = {score[i][n][2 * h], score[i][n][2 * h + 1]};
        }
      }
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int mine = warp * kMine + i;
      float value = 0;
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) value += scores[(k * kQueries + mine) * kScoreStride + lane];
      value = from + lane < limit[i] ? value * factor[i] : -INFINITY;
      const float now = fmaxf(largest[i], lane_max(value)), keep = exp2f(largest[i] - now);
      largest[i] = now;
      value = exp2f(value - now);
      all[i] = all[i] * keep + value;
      reinterpret_cast<__half*>(weights)[mine * kWeightStride + lane] = __float2half_rn(value);
      if (lane == 0) shrink[mine] = keep;
    }
    __syncthreads();

    sum.rescale(shrink);
    sum.template add<kPiece, kWeightStride>(weights, piece);
  }

  // The whole context: the result. A chunk of it: its part, and what it has to be weighed with.
  const bool alone = work.begin == 0 && work.end == q.longest;
  const int chunk = static_cast<int>(kSplitKv ? blockIdx.x : blockIdx.y);
  const auto part = [&](int query) {
    return (int64_t{q.first_row + query / heads} * p.most_chunks + chunk) * heads + query % heads;
  };
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int mine = warp * kMine + i;
    const float whole = lane_sum(all[i]);
    if (lane != 0) continue;
    total[mine] = whole;
    if (!alone && mine < q.count) p.weights[part(q.first_query + mine)] = {largest[i], whole};
  }
  __syncthreads();
  sum.store(q.count, alone, total, [&](int mine) -> float* {
    const int query = q.first_query + mine;
    return alone ? p.out(q.first_row + query / heads, query % heads) : p.parts + part(query) * kMlaRank;
  });
}

}  // namespace

void mla_attend_sm80(const MlaArgs& args, const Context& context) {
  const bool coded = args.cache.coded > 0;
  const auto rows = static_cast<unsigned>(context.step_rows);
  const int64_t pages = (std::max<int64_t>(1, context.longest) + kPageRows - 1) / kPageRows;
  const auto chunks = static_cast<unsigned>(std::min<int64_t>(args.most_chunks, pages));
  if (args.together) {
    const auto queries = rows * static_cast<unsigned>(args.q.heads);
    const unsigned tiles = (queries + kSmallTileQueries - 1) / kSmallTileQueries;
    launch(context, coded ? attend_kernel<false, true> : attend_kernel<false, false>,
           {dim3(tiles, chunks), dim3(kThreads), shared_bytes(2)}, args, 0);
    return join_chunks(args, context);
  }
  if (args.most_chunks == 1) {
    const int tiles = tiles_of_group(args.q.heads, 32);
    const auto groups = static_cast<unsigned>((context.step_rows + kGroupRows - 1) / kGroupRows);
    launch(context, coded ? attend_kernel<false, true> : attend_kernel<false, false>,
           {dim3(groups * static_cast<unsigned>(tiles)), dim3(kThreads), shared_bytes(2)}, args, tiles);
    return;
  }
  launch(
      context, coded ? attend_kernel<true, true> : attend_kernel<true, false>,
      {dim3(chunks, rows, static_cast<unsigned>((args.q.heads + 15) / 16)), dim3(kThreads), shared_bytes(1)},
      args, 0);
  if (chunks > 1) join_chunks(args, context);
}

}  // namespace sluice::backend::cuda
