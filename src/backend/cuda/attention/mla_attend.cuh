// What the kernels of latent attention share: the shape they are made for (all models with latent attention
// so far have it), a step's arguments, how a row's context is split.
#pragma once

#include <algorithm>

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {

inline constexpr int kMlaWidth = 576, kMlaRank = 512;  ///< columns of a cache row, of the values in it
/// Bytes of a cache row in eight bits; where its columns in binary16 and its scales begin.
inline constexpr int kMlaQ8Bytes = 672, kMlaQ8Exact = 512, kMlaQ8Scales = 640;
/// From row to row of halves in shared memory, bytes: banks differ.
inline constexpr int kMlaPitch = kMlaWidth * 2 + 16;
inline constexpr int kMostChunks = 128;
/// Rows that fill a device one by one, their contexts in chunks; more of them are taken many at a time.
inline constexpr int64_t kSplitRows = 64;

struct MlaArgs {
  StepView step;
  Cache cache;
  Rows<float> q, out;
  int32_t layer;
  float scale_log2;  ///< the scale of the scores times log2(e): weights are powers of two
  int32_t most_chunks;
  float2* weights;  ///< [row][chunk][head]: the largest score, the sum of the weights below it
  float* parts;     ///< [row][chunk][head][rank]
  /// Rows are neighbours in one sequence, and chunks those of the last one's context.
  bool together = false;

  /// The length of the context that a row's chunks are made of.
  __device__ int length_of(int row) const {
    return step.positions[together ? step.header->rows - 1 : row] + 1;
  }
};

/// Queries of a thread block where rows are many, or of one sequence: the heads of neighbouring rows; and
/// within 99 KB of shared memory.
inline constexpr int kMlaTileQueries = 64, kSmallTileQueries = 32;

/// Chunks of a row at most, by the rows of the step: as many thread blocks as there are SMs, since a block
/// takes one for itself; where rows alone fill them, no more than one.
inline int most_chunks(int64_t rows, int sm_count) {
  constexpr int64_t kLeast = 2;
  if (rows > kSplitRows) return 1;
  return static_cast<int>(std::clamp<int64_t>(sm_count / rows, kLeast, kMostChunks));
}

/// The same of rows that are neighbours in one sequence: each chunk is a block's for every tile of queries.
inline int most_chunks_together(int64_t rows, int64_t heads, int sm_count, int tile_queries) {
  const int64_t tiles = (rows * heads + tile_queries - 1) / tile_queries;
  return static_cast<int>(std::clamp<int64_t>(sm_count / tiles, 1, kMostChunks));
}

/// Rows of the cache in a chunk of a context of this length: whole pages, as even as they go.
SLUICE_BOTH inline int chunk_of(int length, int most) {
  const int pages = (length + program::kPageRows - 1) / program::kPageRows;
  return (pages + most - 1) / most * program::kPageRows;
}

/// A block's queries: of rows [first_row, ...), the first one is head `first_query` of them, counted through.
struct Queries {
  int first_row, first_query, count, longest;
};

inline constexpr int kGroupRows = 16;

/// A group of 16 rows of one sequence is cut into tiles of `most` queries; in a group of several every row
/// stands alone.
__device__ __forceinline__ Queries queries_of(const MlaArgs& p, int most, int index, int tiles) {
  const int heads = p.q.heads, rows = p.step.header->rows;
  const int group = index / tiles, tile = index % tiles, first = group * kGroupRows;
  const int count = min(kGroupRows, rows - first);
  if (count <= 0) return {0, 0, 0, 0};
  bool same = true;
  for (int i = 1; i < count; ++i) same &= p.step.sequences[first + i] == p.step.sequences[first];
  Queries q{first, tile * most, 0, 0};
  if (same) {
    q.count = min(most, count * heads - q.first_query);
  } else {
    const int a_row = (heads + most - 1) / most;
    q.first_row = first + tile / a_row, q.first_query = tile % a_row * most;
    q.count = q.first_row < first + count ? min(most, heads - q.first_query) : 0;
  }
  if (q.count <= 0) return {0, 0, 0, 0};
  for (int r = q.first_query / heads; r <= (q.first_query + q.count - 1) / heads; ++r) {
    q.longest = max(q.longest, p.step.positions[q.first_row + r] + 1);
  }
  return q;
}

/// Tiles of a group at most.
inline int tiles_of_group(int heads, int most) {
  const int together = (kGroupRows * heads + most - 1) / most;
  const int apart = kGroupRows * ((heads + most - 1) / most);
  return together > apart ? together : apart;
}

/// A power of two that divides numbers up to `largest` to below 2^8: a dot product of 576 of them with cache
/// rows stays finite, and small ones keep their bits.
__device__ __forceinline__ float query_unscale(float largest) {
  const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 40), 254);
  return __uint_as_float(static_cast<uint32_t>(exponent - 7) << 23);
}
/// 1 / query_unscale: of powers of two exponents are subtracted.
__device__ __forceinline__ float query_scale(float unscale) {
  return __uint_as_float((254u << 23) - __float_as_uint(unscale));
}

/// Cache rows in eight bits, as they lie in the cache, to rows of halves. A block of kThreads calls it.
template <int kThreads>
__device__ __forceinline__ void decode_rows(char* to, const char* rows, int count) {
  constexpr int kCodeUnits = kMlaRank / 16, kUnits = kCodeUnits + (kMlaWidth - kMlaRank) * 2 / 16;
#pragma unroll 2
  for (int i = threadIdx.x; i < count * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i - row * kUnits;
    const char* const from = rows + row * kMlaQ8Bytes;
    const uint4 bits = *reinterpret_cast<const uint4*>(from + unit * 16);
    auto* const at = reinterpret_cast<uint4*>(to + row * kMlaPitch);
    if (unit >= kCodeUnits) {
      at[unit + kCodeUnits] = bits;
    } else {
      const auto scale = reinterpret_cast<const __half*>(from + kMlaQ8Scales)[unit / 2];
      const SixteenHalves numbers = halves_of_codes(bits, scale);
      at[2 * unit] = numbers.low, at[2 * unit + 1] = numbers.high;
    }
  }
}

/// joins: puts chunks together too.
void attend_split(const MlaArgs& args, const Context& context, bool joins = true);
void mla_attend_prefill(const MlaArgs& args, const Context& context);
/// Of rows that are neighbours in one sequence: a page is read once for 64 queries. Chunks are left to
/// join_chunks.
void attend_together(const MlaArgs& args, const Context& context);
void mla_attend_sm80(const MlaArgs& args, const Context& context);
/// Puts the chunks of rows together that attend_split or mla_attend_sm80 has left in args.parts.
void join_chunks(const MlaArgs& args, const Context& context);

}  // namespace sluice::backend::cuda
