// mla_attend of some rows (rows 1..64), any processor since sm_80: every row's context is split into chunks
// of whole pages; a thread block takes a chunk of a row for up to 32 heads, and a second kernel puts the
// chunks of a row together in their order. The size of a chunk follows from the row's own length and the
// bucket: so a row's bits do not depend on its neighbours.
//
// Keys and values are the same cache rows, 1,152 bytes each. A page (64 rows) comes to shared memory once,
// the next one while it is worked on:
//   scores   queries stay in registers, each of four warps has a quarter of their columns, its partner pair
//   of warps
//            half of the positions: so a page is read once for them; the quarters meet in shared memory
//   softmax  a warp has four heads (a running maximum, online softmax: Milakov and Gimelshein 2018)
//   values   each of eight warps has 64 of the 512 columns for all heads
// A cache in eight bits: a page comes as it is, 672 bytes a row, and is made halves in shared memory before
// it is worked on, while the next one comes.
//
// Bound by memory at depth: 32 heads take 1,088 matrix instructions a page, 1,700 cycles, and a page takes
// 3,700 at 4.5 TB/s over 132 SMs.
#include <cuda_fp16.h>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_values.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256, kWarps = 8;
constexpr int kHeadTile = 32;
constexpr int kQuarters = 4, kQuarterSteps = kMlaWidth / 16 / kQuarters;  // matrix steps of 16 columns
constexpr int kPageBytes = kPageRows * kMlaPitch;
constexpr int kScoreStride = kPageRows + 8, kWeightStride = kPageRows + 8;
constexpr int kSharedBytes = 2 * kPageBytes + kQuarters * kHeadTile * kScoreStride * 4 +
                             kHeadTile * kWeightStride * 2 + 3 * kHeadTile * 4 +
                             2 * (kMlaWidth / 16) * 32 * 16;  // the queries' second halves

/// Brings a page's rows to shared memory, `count` of them but for those from `known` on; what lies behind
/// becomes zeroes. kCoded: as they are; a page of them takes less room than one in shared memory.
template <bool kCoded>
struct Page {
  static constexpr int kRowBytes = kCoded ? kMlaQ8Bytes : kMlaWidth * 2;
  static constexpr int kPitch = kCoded ? kMlaQ8Bytes : kMlaPitch, kUnits = kRowBytes / 16;
  __device__ static __forceinline__ void bring(uint32_t to, const char* page, int count, int known) {
#pragma unroll 6
    for (int i = threadIdx.x; i < kPageRows * kUnits; i += kThreads) {
      const int row = i / kUnits, unit = i - row * kUnits;
      if (row >= known && row < count) continue;
      copy_async(to + row * kPitch + unit * 16, page + (row < count ? row : 0) * kRowBytes + unit * 16,
                 row < count);
    }
  }
  /// Those from `known` on.
  __device__ static __forceinline__ void bring_rest(uint32_t to, const char* page, int count, int known) {
#pragma unroll 1
    for (int i = threadIdx.x; i < (count - known) * kUnits; i += kThreads) {
      const int row = known + i / kUnits, unit = i % kUnits;
      copy_async(to + row * kPitch + unit * 16, page + row * kRowBytes + unit * 16, true);
    }
  }
};

/// The first position of row r's sequence in this step: rows of the cache before it are there. A whole warp
/// calls it.
__device__ __forceinline__ int first_of_step(const StepView& step, int row) {
  const int rows = step.header->rows, sequence = step.sequences[row];
  int first = step.positions[row];
  for (int i = static_cast<int>(threadIdx.x) % 32; i < rows; i += 32)
    if (step.sequences[i] == sequence) first = min(first, step.positions[i]);
  return __reduce_min_sync(kWholeWarp, first);
}

/// A chunk of a row for 16 kTiles heads. kCoded: the cache is in eight bits. The second page's place holds
/// rows as they are then, and the page is made of them.
template <int kTiles, bool kCoded>
__device__ __forceinline__ void attend_chunk(const PdlLink& pdl, const MlaArgs& p, int first_head, int length,
                                             int chunk_rows, int chunk) {
  extern __shared__ __align__(128) char split_shared[];
  const int row = static_cast<int>(blockIdx.x);
  const int begin = chunk * chunk_rows, end = min(begin + chunk_rows, length);
  const uint32_t pages = shared_address(split_shared);
  float* const scores = reinterpret_cast<float*>(split_shared + 2 * kPageBytes);
  uint16_t* const weights = reinterpret_cast<uint16_t*>(scores + kQuarters * kHeadTile * kScoreStride);
  float* const shrink = reinterpret_cast<float*>(weights + kHeadTile * kWeightStride);
  float* const unscale = shrink + kHeadTile;
  float* const total = unscale + kHeadTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int heads = p.q.heads, quarter = warp % kQuarters, half = warp / kQuarters;

  const char* const first_page = p.cache.row(p.layer, p.step.slot_of(row, begin));
  const auto bring = [&](int buffer, int from) {
    const int count = min(kPageRows, end - from);
    Page<kCoded>::bring(pages + (kCoded ? 1 : buffer) * kPageBytes,
                        p.cache.row(p.layer, p.step.slot_of(row, from)), count, count);
    commit_copies();
  };
  // The first page's rows of earlier steps before the wait.
  const int count = min(kPageRows, end - begin),
            known = max(0, min(count, first_of_step(p.step, row) - begin));
  const uint32_t first_place = pages + (kCoded ? kPageBytes : 0);
  Page<kCoded>::bring(first_place, first_page, count, known);
  pdl.wait();
  Page<kCoded>::bring_rest(first_place, first_page, count, known);
  commit_copies();

  // Queries: a power of two a head keeps them far from the ends of a half's range. Each is split into two
  // halves (high, and the rounding error of high): scores of hundreds stay right. Both become operands in
  // shared memory, a lane's together; the first ones, where scores will be, go on to registers.
  constexpr int kMine = 16 * kTiles / kWarps;  // heads that this warp takes here, and whose softmax
  constexpr int kEach = kMlaWidth / 64;        // pairs of columns 2 lane + 64 m of a head
  float2 loaded[kMine][kEach];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int head = first_head + warp * kMine + i;
    const auto* const from = reinterpret_cast<const float2*>(p.q(row, min(head, heads - 1))) + lane;
#pragma unroll
    for (int m = 0; m < kEach; ++m) loaded[i][m] = head < heads ? from[32 * m] : float2{0, 0};
  }
  auto* const firsts = reinterpret_cast<uint32_t*>(scores);
  auto* const rests = reinterpret_cast<uint32_t*>(total + kHeadTile);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int head = warp * kMine + i;
    float most = 0;
#pragma unroll
    for (int m = 0; m < kEach; ++m) most = fmaxf(most, fmaxf(fabsf(loaded[i][m].x), fabsf(loaded[i][m].y)));
    const float back = query_unscale(lane_max(most)), factor = 1.0f / back;
    if (lane == 0) unscale[head] = back;
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      const float2 v{loaded[i][m].x * factor, loaded[i][m].y * factor};
      const __half2 first = __floats2half2_rn(v.x, v.y);
      // Operand: step of 16 columns, tile of heads, lane, word: row g or g + 8, columns 2t or 2t + 8.
      const int step = lane / 8 + 4 * m, word = head / 8 % 2 + lane / 4 % 2 * 2;
      const int at = (((step * kTiles + head / 16) * 8 + head % 8) * 4 + lane % 4) * 4 + word;
      firsts[at] = *reinterpret_cast<const uint32_t*>(&first);
      rests[at] = pack_halves(v.x - __low2float(first), v.y - __high2float(first));
    }
  }
  __syncthreads();
  uint4 query[kTiles][kQuarterSteps];
  const auto operand = [&](const uint32_t* of, int s, int i) {
    return reinterpret_cast<const uint4*>(of)[((quarter * kQuarterSteps + s) * kTiles + i) * 32 + lane];
  };
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int s = 0; s < kQuarterSteps; ++s) query[i][s] = operand(firsts, s, i);
  }

  QueryRowSums<kTiles> sum;
  float largest[kMine], all[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) largest[i] = -INFINITY, all[i] = 0;

  int buffer = 0;
  for (int from = begin; from < end; from += kPageRows, buffer ^= kCoded ? 0 : 1) {
    const int count = min(kPageRows, end - from);
    const bool more = from + kPageRows < end;
    if (kCoded) {
      wait_copies<0>();
      __syncthreads();
      decode_rows<kThreads>(split_shared, split_shared + kPageBytes, kPageRows);
    } else if (more) {
      bring(buffer ^ 1, from + kPageRows);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (kCoded && more) bring(0, from + kPageRows);
    const uint32_t page = pages + buffer * kPageBytes;

    float score[kTiles][4][4] = {};
#pragma unroll
    for (int s = 0; s < kQuarterSteps; ++s) {
      const int c = (quarter * kQuarterSteps + s) * 16;
      uint4 rest[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) rest[i] = operand(rests, s, i);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t key[4];  // positions 0..7 columns 0..7 and 8..15, positions 8..15 likewise
        const int position = half * 32 + n * 8 + lane / 16 * 8 + lane % 8;
        load_matrices(key, page + position * kMlaPitch + (c + lane / 8 % 2 * 8) * 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint4& one = query[i][s];
          const uint32_t first[4] = {one.x, one.y, one.z, one.w},
                         second[4] = {rest[i].x, rest[i].y, rest[i].z, rest[i].w};
          mma_16x8x16(score[i][n], first, key[0], key[1]);
          mma_16x8x16(score[i][n + 1], first, key[2], key[3]);
          mma_16x8x16(score[i][n], second, key[0], key[1]);
          mma_16x8x16(score[i][n + 1], second, key[2], key[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float* const at =
              scores + (quarter * kHeadTile + 16 * i + 8 * h + g) * kScoreStride + half * 32 + n * 8 + 2 * t;
          *reinterpret_cast<float2*>(at) = {score[i][n][2 * h], score[i][n][2 * h + 1]};
        }
      }
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int head = warp * kMine + i;
      float2 value{0, 0};
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
        const float2 part =
            *reinterpret_cast<const float2*>(scores + (k * kHeadTile + head) * kScoreStride + 2 * lane);
        value.x += part.x, value.y += part.y;
      }
      const float factor = p.scale_log2 * unscale[head];
      value.x = 2 * lane < count ? value.x * factor : -INFINITY;
      value.y = 2 * lane + 1 < count ? value.y * factor : -INFINITY;
      const float now = fmaxf(largest[i], lane_max(fmaxf(value.x, value.y)));
      const float keep = exp2f(largest[i] - now);
      largest[i] = now;
      value.x = exp2f(value.x - now), value.y = exp2f(value.y - now);
      all[i] = all[i] * keep + lane_sum(value.x + value.y);
      *reinterpret_cast<uint32_t*>(weights + head * kWeightStride + 2 * lane) = pack_halves(value.x, value.y);
      if (lane == 0) shrink[head] = keep;
    }
    __syncthreads();

    sum.rescale(shrink);
    sum.template add<kPageRows, kWeightStride>(weights, page);
    __syncthreads();
  }

  // One chunk: the result. Several: its part, and what it has to be weighed with.
  const bool alone = length <= chunk_rows;
  const int64_t part = int64_t{row} * p.most_chunks + chunk;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int head = warp * kMine + i;
    if (lane != 0 || first_head + head >= heads) continue;
    total[head] = all[i];
    if (!alone) p.weights[part * heads + first_head + head] = {largest[i], all[i]};
  }
  __syncthreads();
  sum.store(heads - first_head, alone, total, [&](int mine) -> float* {
    const int head = first_head + mine;
    return alone ? p.out(row, head) : p.parts + (part * heads + head) * kMlaRank;
  });
}

/// Tiles of 16 heads read the cache once each, but halve what a thread block has to do: they are taken where
/// a row has no more than small_chunks chunks. grid: (rows, tiles of chunks). kEither: there may be rows of
/// more chunks.
template <bool kEither, bool kCoded>
__global__ void __launch_bounds__(kThreads, 1)
    attend_chunks(const Timestamps timestamps, const MlaArgs p, int small_chunks) {
  const PdlLink pdl(timestamps);
  // What a step is made of is there before its first kernel; its cache rows and queries are not.
  const int row = static_cast<int>(blockIdx.x), tiles = (p.q.heads + 15) / 16, pairs = (tiles + 1) / 2;
  if (row >= p.step.header->rows) return;
  const int length = p.step.positions[row] + 1, chunk_rows = chunk_of(length, p.most_chunks);
  const int chunks = (length + chunk_rows - 1) / chunk_rows;
  const bool small = !kEither || chunks <= small_chunks;
  const int at = static_cast<int>(blockIdx.y), each = small ? tiles : pairs, chunk = at / each;
  if (chunk >= chunks) return;
  const int first_head = at % each * (small ? 16 : 32);
  if (small) {
    attend_chunk<1, kCoded>(pdl, p, first_head, length, chunk_rows, chunk);
  } else if constexpr (kEither) {
    attend_chunk<2, kCoded>(pdl, p, first_head, length, chunk_rows, chunk);
  }
}

/// grid: (heads, rows): a thread block puts the chunks of a head of a row together, a thread four columns.
__global__ void __launch_bounds__(kMlaRank / 4) join_parts(const Timestamps timestamps, const MlaArgs p) {
  __shared__ float factor[kMostChunks];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int row = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x), heads = p.q.heads;
  if (row >= p.step.header->rows) return;
  const int length = p.length_of(row), chunk_rows = chunk_of(length, p.most_chunks);
  const int chunks = (length + chunk_rows - 1) / chunk_rows;
  if (chunks == 1) return;
  const int64_t part = int64_t{row} * p.most_chunks;
  float largest = -INFINITY, total = 0;
  for (int i = 0; i < chunks; ++i) largest = fmaxf(largest, p.weights[(part + i) * heads + head].x);
  for (int i = 0; i < chunks; ++i) {
    const float2 weight = p.weights[(part + i) * heads + head];
    total += exp2f(weight.x - largest) * weight.y;
  }
  for (int i = threadIdx.x; i < chunks; i += kMlaRank / 4) {
    factor[i] = exp2f(p.weights[(part + i) * heads + head].x - largest) / total;
  }
  __syncthreads();
  float4 sum{0, 0, 0, 0};
  const float4* at =
      reinterpret_cast<const float4*>(p.parts + (part * heads + head) * kMlaRank) + threadIdx.x;
#pragma unroll 8
  for (int i = 0; i < chunks; ++i) {
    const float4 v = at[int64_t{i} * heads * (kMlaRank / 4)];
    sum.x += factor[i] * v.x, sum.y += factor[i] * v.y, sum.z += factor[i] * v.z, sum.w += factor[i] * v.w;
  }
  *reinterpret_cast<float4*>(p.out(row, head) + 4 * threadIdx.x) = sum;
}

}  // namespace

void attend_split(const MlaArgs& args, const Context& context, bool joins) {
  const int heads = args.q.heads;
  const int64_t longest = std::max<int64_t>(1, context.longest);
  const int64_t chunks = std::min<int64_t>(args.most_chunks, (longest + kPageRows - 1) / kPageRows);
  const int64_t tiles = (heads + 15) / 16;
  // As many thread blocks as there are SMs.
  const int64_t small =
      tiles == 1 ? chunks : std::min(chunks, context.sm_count / (context.step_rows * tiles));
  LaunchShape shape{dim3(static_cast<unsigned>(context.step_rows),
                         static_cast<unsigned>(std::max(small * tiles, chunks * ((tiles + 1) / 2)))),
                    dim3(kThreads), kSharedBytes};
  shape.late = true;  // 4 sequences of GLM-4.7-Flash behind 2,048 positions 998 -> 1,065 tokens/s (H200)
  const bool coded = args.cache.coded > 0;
  launch(context,
         small < chunks ? (coded ? attend_chunks<true, true> : attend_chunks<true, false>)
                        : (coded ? attend_chunks<false, true> : attend_chunks<false, false>),
         shape, args, small);
  if (joins && chunks > 1) join_chunks(args, context);
}

void join_chunks(const MlaArgs& args, const Context& context) {
  launch(context, join_parts,
         {dim3(static_cast<unsigned>(args.q.heads), static_cast<unsigned>(context.step_rows)),
          dim3(kMlaRank / 4)},
         args);
}

}  // namespace sluice::backend::cuda
