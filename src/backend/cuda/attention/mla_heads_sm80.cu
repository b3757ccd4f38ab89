// mla_heads for one row without clusters and within 99 KB of shared memory (any processor since sm_80; where
// there are clusters, contexts that mla_heads_split_kv.cu has no room for), in four launches:
//
//   q          the low-rank query normed and multiplied (gemv/gemv.cu), where there is one
//   queries    a thread block a head: its latent queries, as matrix instructions take them; one more
//   block
//              puts the row into the cache
//   attention  all SMs share the context by pieces of 32 positions
//   values     joined and multiplied by v_b (mla_heads_values.cuh)
//
// Attention: as in mla_heads_split_kv.cu, but a piece comes by cp.async while the one before it is worked on,
// queries go from scratch straight to registers, and each block leaves its part of the contexts in scratch.
//   scores   each of four warps has a quarter of the columns, and of two such fours each 16 positions; the
//            quarters meet in shared memory
//   softmax  a warp has some heads, a lane a position (a running maximum: Milakov and Gimelshein 2018)
//   values   each of eight warps has 64 of the 512 columns for all heads
// Positions or columns are the rows of the matrix instructions, heads their eight columns: 20 heads fill 24.
#include <cuda_fp16.h>

#include <algorithm>
#include <numbers>

#include "backend/cuda/attention/mla_heads.cuh"
#include "backend/cuda/attention/mla_heads_values.cuh"
#include "backend/cuda/attention/mla_values.cuh"
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/scratch.h"

namespace sluice::backend::cuda {
namespace {

constexpr int kRotated = kMlaWidth - kMlaRank;

// --- queries ---

constexpr int kQueryThreads = 1024, kRowLanes = kQueryThreads / kMlaRank;
constexpr int kMostBlocks = 6, kLaneBlocks = kMostBlocks / kRowLanes;  // of 32 columns of k_b
static_assert(kMostNope == 32 * kMostBlocks);

/// grid: heads, and one that appends the row.
template <typename One>
__global__ void __launch_bounds__(kQueryThreads)
    latent_queries(const Timestamps timestamps, const __grid_constant__ MlaHeadsArgs p,
                   const CacheRows appended) {
  __shared__ __align__(16) float query[kMlaWidth];
  __shared__ float partial[kQueryThreads / 32];
  const PdlLink pdl(timestamps);
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32, heads = p.out.heads;
  if (head == heads) {
    pdl.wait();
    return append_row(appended, p.rope, 0);
  }
  // Two lanes a row of k_b, every other block of 32 columns each.
  const int blocks = p.nope / 32, row = thread / kRowLanes, first = thread % kRowLanes;
  One raw[kLaneBlocks];
#pragma unroll
  for (int i = 0; i < kLaneBlocks; ++i)
    raw[i].load(p.k_b.type, planes_from(p.k_b),
                static_cast<int>(p.k_b.row(head, row)) * blocks + min(first + i * kRowLanes, blocks - 1));
  pdl.wait();
  const Activations x{0, p.nope, true, false};
  const float* const in = p.in(0, head);
  if (warp < blocks) quantize_lanes(x, warp, __ldcg(in + thread));
  if (warp == kMostBlocks) {
    const SinCos sin_cos = p.rope.sin_cos(__ldg(p.step.positions), lane, p.factors);
    const int one = p.rope.first(lane), other = p.rope.second(lane, kRotated / 2);
    const float a = __ldcg(in + p.nope + one), b = __ldcg(in + p.nope + other);
    query[kMlaRank + one] = a * sin_cos.cosine - b * sin_cos.sine;
    query[kMlaRank + other] = a * sin_cos.sine + b * sin_cos.cosine;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneBlocks; ++i) {
    const int block = first + i * kRowLanes;
    if (block < blocks) sum += raw[i].times(p.k_b.type, x.block(0, block));
  }
  sum = lane_sum(sum, kRowLanes);
  if (first == 0) query[row] = sum;
  __syncthreads();
  float largest = lane_max(thread < kMlaWidth ? fabsf(query[thread]) : 0.0f);
  if (lane == 0) partial[warp] = largest;
  __syncthreads();
  largest = lane_max(partial[lane]);
  const float unscale = query_unscale(largest), scale = 1.0f / unscale;
  if (thread == 0) p.split.unscale[head] = unscale;
  if (thread < kMlaWidth / 2) {
    const float2 v = reinterpret_cast<const float2*>(query)[thread];
    p.split.put(head, thread, v.x * scale, v.y * scale);
  }
}

// --- attention ---

constexpr int kThreads = 256, kWarps = 8, kPiece = 32;
constexpr int kQuarters = 4, kQuarterSteps = kMlaWidth / 16 / kQuarters;  // matrix steps of 16 columns
constexpr int kPieceBytes = kPiece * kMlaPitch;
constexpr int kScoreStride = kPiece + 4, kWeightStride = kPiece + 8;
constexpr int kMostParts = 128;
constexpr int kPartPitch = kMlaRank * 2 + 16;  // of a head's context in shared memory
static_assert(program::kPageRows % kPiece == 0, "a piece lies in one page");

constexpr int shared_bytes(int tiles) {
  const int heads = 8 * tiles;
  return 2 * kPieceBytes + kQuarters * heads * kScoreStride * 4 + heads * kWeightStride * 2 + heads * 4;
}
static_assert(shared_bytes(4) <= kMostShared);
static_assert(32 * kPartPitch <= 2 * kPieceBytes);

struct Args {
  StepView step;
  Cache cache;
  SplitQueries queries;
  int layer, heads;
  float scale_log2;  // the scale of the scores times log2(e): weights are powers of two
  float2* weights;   // [part][head]: the largest score, the sum of the weights below it
  uint16_t* parts;   // [part][head][rank]: contexts, halves
};

/// grid: (parts, heads by 8 kTiles).
template <int kTiles, bool kCoded>
__global__ void __launch_bounds__(kThreads, 1)
    attend_row(const Timestamps timestamps, const __grid_constant__ Args p) {
  constexpr int kPadded = 8 * kTiles;
  extern __shared__ __align__(128) char row_shared[];
  float* const scores = reinterpret_cast<float*>(row_shared + 2 * kPieceBytes);
  uint16_t* const weights = reinterpret_cast<uint16_t*>(scores + kQuarters * kPadded * kScoreStride);
  float* const shrink = reinterpret_cast<float*>(weights + kPadded * kWeightStride);
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int quarter = warp % kQuarters, half = warp / kQuarters;
  const int first_tile = static_cast<int>(blockIdx.y) * kTiles, first_head = 8 * first_tile;
  const int heads = min(p.heads - first_head, kPadded);
  const int length = p.step.positions[0] + 1, piece_count = (length + kPiece - 1) / kPiece;
  const int parts = min(static_cast<int>(gridDim.x), piece_count), part = static_cast<int>(blockIdx.x);
  constexpr int kUnits = kMlaRank * 2 / 16;  // of a head's part
  auto* const to = reinterpret_cast<uint4*>(p.parts + (int64_t{part} * p.heads + first_head) * kMlaRank);
  if (part >= parts) {
    for (int i = threadIdx.x; i < heads * kUnits; i += kThreads) to[i] = {0, 0, 0, 0};
    if (static_cast<int>(threadIdx.x) < heads)
      p.weights[part * p.heads + first_head + threadIdx.x] = {-INFINITY, 0};
    return;
  }
  const int begin = piece_count * part / parts, end = piece_count * (part + 1) / parts;
  const uint32_t pieces = shared_address(row_shared);

  // Eight threads a row; rows behind the context become zeroes.
  const auto bring = [&](int piece) {
    const char* const from = p.cache.row(p.layer, p.step.slot_of(0, piece * kPiece));
    const int count = min(kPiece, length - piece * kPiece);
    if (kCoded) {
      constexpr int kUnits = kMlaQ8Bytes / 16;
      for (int i = threadIdx.x; i < kPiece * kUnits; i += kThreads) {
        const bool there = i < count * kUnits;
        copy_async(pieces + kPieceBytes + i * 16, from + (there ? i : 0) * 16, there);
      }
    } else {
      const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
      const bool there = row < count;
      const char* const source = from + (there ? row : 0) * kMlaWidth * 2 + unit * 16;
      const uint32_t to = pieces + (piece - begin) % 2 * kPieceBytes + row * kMlaPitch + unit * 16;
#pragma unroll
      for (int k = 0; k < kMlaWidth / 64; ++k) copy_async(to + k * 128, source + k * 128, there);
    }
    commit_copies();
  };
  bring(begin);

  uint2 first[kTiles][kQuarterSteps], second[kTiles][kQuarterSteps];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int s = 0; s < kQuarterSteps; ++s) {
      const int at = SplitQueries::at(first_tile + i, quarter * kQuarterSteps + s, lane);
      first[i][s] = __ldcg(reinterpret_cast<const uint2*>(p.queries.first) + at);
      second[i][s] = __ldcg(reinterpret_cast<const uint2*>(p.queries.second) + at);
    }
  }
  // Of heads i * kWarps + warp: the largest score, the sum of this lane's weights.
  float factor[kTiles], largest[kTiles], all[kTiles];
  QueryColumnSums<kTiles> sum;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    factor[i] = p.scale_log2 * __ldcg(p.queries.unscale + first_head + min(i * kWarps + warp, heads - 1));
    largest[i] = -INFINITY, all[i] = 0;
  }

  for (int piece = begin; piece < end; ++piece) {
    wait_copies<0>();
    __syncthreads();  // it is there, and everybody has done with the one before
    if (kCoded) {
      decode_rows<kThreads>(row_shared, row_shared + kPieceBytes, kPiece);
      __syncthreads();
    }
    if (piece + 1 < end) bring(piece + 1);
    const uint32_t rows = pieces + (kCoded ? 0 : (piece - begin) % 2 * kPieceBytes);

    float score[2][kTiles][4] = {};  // positions by heads; of the queries' first and second halves
#pragma unroll
    for (int s = 0; s < kQuarterSteps; ++s) {
      uint32_t key[4];
      load_matrices(key, rows + (half * 16 + lane % 16) * kMlaPitch +
                             ((quarter * kQuarterSteps + s) * 16 + lane / 16 * 8) * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        mma_16x8x16(score[0][i], key, first[i][s].x, first[i][s].y);
        mma_16x8x16(score[1][i], key, second[i][s].x, second[i][s].y);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float* const to = scores + (quarter * kPadded + 8 * i + 2 * t) * kScoreStride + half * 16 + g;
#pragma unroll
      for (int k = 0; k < 4; ++k) to[k % 2 * kScoreStride + k / 2 * 8] = score[0][i][k] + score[1][i][k];
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int head = i * kWarps + warp;
      float value = 0;
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) value += scores[(k * kPadded + head) * kScoreStride + lane];
      value = piece * kPiece + lane < length ? value * factor[i] : -INFINITY;
      const float now = fmaxf(largest[i], lane_max(value)), keep = exp2f(largest[i] - now);
      largest[i] = now;
      value = exp2f(value - now);
      all[i] = all[i] * keep + value;
      reinterpret_cast<__half*>(weights)[head * kWeightStride + lane] = __float2half_rn(value);
      if (lane == 0) shrink[head] = keep;
    }
    __syncthreads();

    sum.rescale(shrink);
#pragma unroll
    for (int at = 0; at < kPiece; at += 16)
      sum.template add<kWeightStride>(weights + at, rows + at * kMlaPitch);
  }
  __syncthreads();

  // The contexts, halves, by way of shared memory: where rows and weights were.
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int head = i * kWarps + warp;
    const float whole = lane_sum(all[i]);
    if (lane != 0) continue;
    shrink[head] = whole > 0 ? 1 / whole : 0.0f;
    if (head < heads) p.weights[part * p.heads + first_head + head] = {largest[i], whole};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float2 inverse = *reinterpret_cast<const float2*>(shrink + 8 * i + 2 * t);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = warp * 64 + m * 16 + k / 2 * 8 + g;
        reinterpret_cast<__half*>(row_shared + (8 * i + 2 * t + k % 2) * kPartPitch)[column] =
            __float2half_rn(sum.of[m][i][k] * (k % 2 == 0 ? inverse.x : inverse.y));
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * kUnits; i += kThreads)
    to[i] = reinterpret_cast<const uint4*>(row_shared + i / kUnits * kPartPitch)[i % kUnits];
}

using AttendKernel = void (*)(Timestamps, Args);
AttendKernel kernel_of(int tiles, bool coded) {
  switch (tiles) {
    case 2: return coded ? attend_row<2, true> : attend_row<2, false>;
    case 3: return coded ? attend_row<3, true> : attend_row<3, false>;
    default: return coded ? attend_row<4, true> : attend_row<4, false>;
  }
}

/// What the launches leave for each other.
struct Pieces {
  float* q = nullptr;
  SplitQueries queries{};
  float2* weights = nullptr;
  uint16_t* parts = nullptr;
  int64_t bytes = 0;

  Pieces(char* base, int64_t heads) {
    Scratch scratch(base);
    const auto take = [&]<typename T>(T*& place, int64_t count) { place = scratch.take<T>(count); };
    const int64_t padded = (heads + 31) / 32 * 32;
    take(q, heads * (kMostNope + kRotated));
    take(queries.first, SplitQueries::words(padded));
    take(queries.second, SplitQueries::words(padded));
    take(queries.unscale, padded);
    take(weights, kMostParts * heads);
    take(parts, kMostParts * heads * kMlaRank);
    bytes = scratch.bytes();
  }
};

}  // namespace

int64_t sm80_scratch_bytes(int64_t heads) { return Pieces(nullptr, heads).bytes; }

void start_sm80(MlaHeadsArgs args, const CacheRows& appended, const Context& context) {
  const int heads = args.out.heads, width = args.nope + kRotated;
  const Pieces pieces(context.scratch, heads);
  if (args.q.codes != nullptr) {
    GemvProducts products;
    products.parts[0] = {args.q, pieces.q, nullptr};
    products.count = 1, products.in = args.in(0), products.norm = args.q_norm;
    products.epsilon = args.epsilon;
    check(multiply_gemv(context, products) ? cudaSuccess : cudaErrorNotSupported);
    args.in = {pieces.q, int64_t{heads} * width, width, heads, width};
  }
  args.split = pieces.queries;
  const auto queries = args.k_b.type == quant::Type::Q8_0   ? latent_queries<TypedRaw<quant::Type::Q8_0>>
                       : args.k_b.type == quant::Type::Q4_0 ? latent_queries<TypedRaw<quant::Type::Q4_0>>
                       : args.k_b.type == quant::Type::Q5_0 ? latent_queries<TypedRaw<quant::Type::Q5_0>>
                                                            : latent_queries<AnyRaw>;
  launch(context, queries,
         {dim3(static_cast<unsigned>(heads + 1)), dim3(kQueryThreads),
          Activations::row_bytes(args.nope, true, false)},
         args, appended);

  // Parts enough to fill the device, and few where it is not worth joining many.
  const int tiles = std::clamp((heads + 7) / 8, 2, 4);
  const int64_t most = (std::max<int64_t>(1, context.longest) + kPiece - 1) / kPiece;
  const auto count = static_cast<int>(
      std::min({most, int64_t{context.sm_count}, int64_t{most > 256 ? kMostParts : kMostParts / 2}}));
  launch(context, kernel_of(tiles, args.cache.coded > 0),
         {dim3(static_cast<unsigned>(count), static_cast<unsigned>((heads + 8 * tiles - 1) / (8 * tiles))),
          dim3(kThreads), shared_bytes(tiles)},
         Args{args.step, args.cache, pieces.queries, args.layer, heads,
              args.scale * std::numbers::log2e_v<float>, pieces.weights, pieces.parts});
  join_values<kMostParts>({args.out, args.v_b, count, args.form_at, pieces.weights, pieces.parts}, context);
}

}  // namespace sluice::backend::cuda
