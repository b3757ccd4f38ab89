// Products of panels with many activation rows at once, on matrix tiles: weights are unpacked once to bf16,
// scale and all, and used for every row. Only a tier with tiles has this table; elsewhere many rows go
// through PanelProduct.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/matmul.h"
#include "quant/types.h"

namespace sluice::backend::cpu {

/// Rows of a tile of activations: the rows of a product are a multiple of it, filled up with zeroes.
inline constexpr int kTileHeight = 16;
/// Activation rows that one product takes at most.
inline constexpr int kTiledRows = 2 * kTileHeight;

/// A panel of `columns` numbers a row, unpacked for products: [columns / 2][kPanelRows] pairs of bf16, the
/// numbers of columns 2i and 2i + 1 of a row side by side.
using PanelUnpack = void (*)(const uint8_t* panel, int64_t columns, uint16_t* pairs, Prefetch prefetch);

struct TileKernels {
  /// To bf16, to nearest even. columns: a multiple of kQuantColumns, as everywhere here.
  void (*round)(const float* x, int64_t columns, uint16_t* out);
  /// out0[i * kPanelRows + r] = row r of the first panel . activation row i, and out1 likewise of the second,
  /// for `rows` = 16 or 32 rows of x, [rows][columns]. Sums are float32, in an order that does not depend on
  /// rows.
  void (*product)(const uint16_t* pairs0, const uint16_t* pairs1, int64_t columns, const uint16_t* x,
                  int rows, float* out0, float* out1);
  // One a weight type of QuantBlocks.
  PanelUnpack q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4;
  PanelUnpack q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs;
};

/// The table of a tier; null where it has no tiles.
const TileKernels* tile_kernels(Isa isa);

}  // namespace sluice::backend::cpu
