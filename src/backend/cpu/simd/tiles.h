// Products of panels with many activation rows at once, on matrix tiles: weights are unpacked once to bf16,
// scale and all, and used for every row. Only a tier with tiles has this table; elsewhere many rows go
// through PanelProduct.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/matmul.h"

namespace sluice::backend::cpu {

/// Activation rows of a tile: rows go through products in groups of it, the last one filled up with zeroes.
inline constexpr int kGroupRows = 16;
/// Columns of two panels that are unpacked at once: 32 KB, which mostly stay in the first-level cache while
/// the rows pass by; with fewer, sums would come and go more often. Whole blocks of every type.
inline constexpr int64_t kTiledColumns = 512;
/// Floats of a tile of sums.
inline constexpr int kTileFloats = kPanelRows * kGroupRows;

struct TileKernels {
  /// Before the first product of a thread, and after its last: what tiles need is set up, and given up.
  void (*begin)();
  void (*end)();
  /// A group of rows [columns] to bf16, to nearest even, as products want them: [columns / 32][16 pairs of
  /// columns, the even ones first][kGroupRows][2]. rows <= kGroupRows; columns: a multiple of kQuantColumns,
  /// as everywhere here.
  void (*round)(const float* const* x, int rows, int64_t columns, uint16_t* out);
  /// sums[group][panel][r][i] (+)= row r of the panel . row i of the group, for both panels and the groups x0
  /// and, unless null, x1; added to what is there if `more`. Sums are float32, in an order that does not
  /// depend on the groups.
  void (*product)(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, int64_t columns,
                  bool more, float* sums);
  /// out[i][r] = in[r][i], 16 x 16.
  void (*transpose)(const float* in, float* out);
  /// The same for i < rows, each out[i] a place of its own, and addends[i] added unless addends is null. Past
  /// the caches where a place is a cache line: what a step of many rows writes does not fit them, and reading
  /// a line before writing it costs as much again.
  void (*write)(const float* in, float* const* out, const float* const* addends, int rows);
  /// A tile of sums as 16 columns of a group of rows in round()'s form: of the 32 columns that begin at out,
  /// the first half (0) or the second (1).
  void (*round_sums)(const float* in, int half, uint16_t* out);
  /// out[i][r] += weights[i] * in[r][i] for i < rows, in the caches: the next expert adds to it.
  void (*add)(const float* in, float* const* out, const float* weights, int rows);
};

/// The table of a tier; null where it has no tiles.
const TileKernels* tile_kernels(Isa isa);

/// Groups of rows whose sums with a panel stay in tiles while it is unpacked.
inline constexpr int kFewGroups = 6;
/// sums[group * 2][r][i] = row r of a packed panel . row i of the group, of groups <= kFewGroups that were
/// rounded whole and follow each other: the sums of TileKernels::product, to the bit, and their places for
/// the first panel of two.
using TiledFew = void (*)(const uint8_t* panel, int64_t columns, Prefetch prefetch, const uint16_t* x,
                          int groups, float* sums);

/// Blocks of a panel (of 32 columns) that are unpacked beside a product of kTiledColumns.
inline constexpr int kBesideGroups = 4;
/// TileKernels::product of two groups of rows and kTiledColumns columns; meanwhile the first kBesideGroups
/// blocks of `packed` are unpacked to `out` (unpack.h).
using TiledBeside = void (*)(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, bool more,
                             float* sums, const uint8_t* packed, Prefetch prefetch, uint16_t* out);

/// Products of a weight type on tiles with something else beside.
struct TiledProduct {
  TiledFew few = nullptr;        // null: the format has none
  TiledBeside beside = nullptr;  // null: it gains nothing
};
/// None for float formats.
using TiledProducts = ByFormat<TiledProduct>;
/// The table of a tier; null where it has no tiles.
const TiledProducts* tiled_products(Isa isa);

}  // namespace sluice::backend::cpu
