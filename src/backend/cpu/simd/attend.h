// Attention over one chunk of the latent cache: the kernels of one instruction tier, as a table of functions.
// A chunk is some rows of the cache, at most kChunkRows, decoded once into a tile; many queries, each a head
// of a row of the step, go over the tile together. Which rows make a chunk, and how chunks are put together,
// is ops/mla_attend.cc's business.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::backend::cpu {

enum class Isa : uint8_t;  // isa.h

/// Cache rows of a chunk: its tile (295 KB in float32, 147 KB in bfloat16 or 279 KB with values in pairs, at
/// 512 + 64 columns) fits most second caches.
inline constexpr int64_t kChunkRows = 128;
/// Of which half may lie in one place and half in another.
inline constexpr int64_t kHalfRows = kChunkRows / 2;
/// Columns of rows that are attended to where they lie: a multiple of this.
inline constexpr int64_t kRowColumns = 32;
/// Queries that one call takes at most.
inline constexpr int64_t kQueries = 32;

/// A tile's row is `width` numbers, of which the first `rank` are the value as well as part of the key.
struct AttendShape {
  int64_t width, rank;
};

/// Cache rows of eight bits (quant/cache_row.h), `row_bytes` apart: `coded` codes, whole runs of kQ8Run with
/// a binary16 scale each (from byte scales_at on); the other columns are binary16 (from byte exact_at on).
struct Q8Rows {
  const std::byte* at;
  int64_t row_bytes, coded, exact_at, scales_at;
};
inline constexpr int64_t kQ8Run = 32;

/// The chunk's part of each query's result, with room for kQueries: a softmax over the chunk alone, not yet
/// divided by its total.
struct ChunkResult {
  float* largest;  // [queries], the largest score
  float* total;    // [queries], the sum of e^(score - largest)
  float* sums;     // [queries][sums_stride], the values weighted with e^(score - largest)
};

/// Cache rows that the caller's next chunk reads, in two pages: a call asks for them while it computes.
struct Ahead {
  const char *at = nullptr, *end = nullptr, *next = nullptr, *next_end = nullptr;
  int64_t bytes() const { return (end - at) + (next_end - next); }
};

/// AttendKernels::in_place_queries where a call does nothing to the rows.
inline constexpr int64_t kAlwaysInPlace = int64_t{1} << 62;

struct AttendKernels {
  const char* name;
  /// Of the numbers that queries, keys, weights and values are rounded to: 24 (float32), 11 and more (whole
  /// numbers of 16 bits under a scale a row), 8 (bfloat16).
  int bits;
  /// Floats that a tile, the packed queries of a call and a call's own scratch take, and a query's sums: all
  /// multiples of 16, and all of them begin at such multiples.
  int64_t (*tile_floats)(AttendShape);
  int64_t (*packed_floats)(AttendShape);
  int64_t (*work_floats)(AttendShape);
  int64_t (*sums_stride)(AttendShape);
  /// Decodes `count` rows to the tile, from row `first` on; first is a multiple of 32, and so is count unless
  /// they are a chunk's last.
  void (*decode_f16)(const uint16_t* rows, AttendShape, int64_t first, int64_t count, float* tile);
  void (*decode_q8)(Q8Rows rows, AttendShape, int64_t first, int64_t count, float* tile);
  void (*decode_f32)(const float* rows, AttendShape, int64_t first, int64_t count, float* tile);
  /// Brings up to kQueries queries [width] into the order that attend reads.
  void (*pack)(const float* const* q, int64_t queries, AttendShape, float* packed);
  /// Query i attends to the tile's first counts[i] rows (at least one). Its result does not depend on its
  /// neighbours, as long as the tile's numbers are finite.
  void (*attend)(const float* packed, const int32_t* counts, int64_t queries, const float* tile, AttendShape,
                 float scale, float* work, Ahead, ChunkResult);
  /// out = out * a + sums * b for `count` numbers.
  void (*merge)(float* out, float a, const float* sums, float b, int64_t count);
  /// For kernels that multiply bfloat16, or null; they want whole vectors of kRowColumns columns. Decodes
  /// such rows as the others do, and attends to those of a whole chunk (see ends_in_place) where they lie,
  /// the first half of them at pages[0] and the second at pages[1]: the same bits as of a tile.
  void (*decode_bf16)(const uint16_t* rows, AttendShape, int64_t first, int64_t count, float* tile) = nullptr;
  void (*attend_pages)(const float* packed, const int32_t* counts, int64_t queries,
                       const uint16_t* const* pages, AttendShape, float scale, float* work, Ahead,
                       ChunkResult) = nullptr;
  /// Queries that see a chunk up to which it is left where it lies: with more, what each call does to its
  /// rows is better done once, in a tile.
  int64_t in_place_queries = 0;
  /// Whether a chunk that is not whole may stay there, too: behind the rows that queries see lies whatever
  /// there may be, and the second page may be missing where they end before it.
  bool ends_in_place = false;
  /// What a call costs beside its queries, in queries: with tiles of 16 most of it.
  int64_t call_queries = 8;
  /// For kernels whose tile is more than rows of bfloat16, or null: such rows alone of a chunk in eight bits,
  /// each `width` numbers, from the tile's beginning. Up to in_place_queries see them there as attend_pages
  /// sees any, the same bits as of a tile.
  void (*decode_q8_keys)(Q8Rows rows, AttendShape, int64_t first, int64_t count, float* tile) = nullptr;
};

/// The table of a tier; the nearest one below where a tier has none of its own.
const AttendKernels& attend_kernels(Isa isa);

}  // namespace sluice::backend::cpu
