// The weight-multiplying kernels of one instruction tier, as a table of functions. A tier's file
// (simd/matmul_TIER.cc) gives one table and keeps everything else to itself; bodies are shared
// (simd/panel_body.h) and written against that tier's vectors (simd/lanes_TIER.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/simd/formats.h"

namespace sluice::backend::cpu {

enum class Isa : uint8_t;  // isa.h

/// Output rows of a panel: packed weights are interleaved so that lane r of every vector belongs to row r.
inline constexpr int kPanelRows = 16;
/// Numbers of an activation row under one scale.
inline constexpr int kQuantColumns = 32;
/// Activation rows that one call of a product takes at most.
inline constexpr int kTileRows = 8;

/// Of a ManyProduct.
inline constexpr int kManyRows = 64;

/// Activation rows of a product of two panels.
inline constexpr int kPairRows = 4;

/// 32 numbers of an activation row: number = scale * code. A block that holds an infinity or a NaN has a NaN
/// scale, so whatever it is multiplied with becomes NaN.
struct QuantBlock {
  int8_t codes[kQuantColumns];
  float scale;
  float scaled_sum;      // scale * the sum of all codes
  float scaled_sums[2];  // of the first and the last 16
  // What sums of products with unsigned codes begin with (panel_body.h), so that it makes up for the codes'
  // offset: minus the offset times the sum of x's codes. For offsets of 8 and of 128; and for 32 of each 16.
  int32_t starts[2], half_starts[2];
};

/// How far ahead of the weights in use memory is asked for, in bytes; a panel's stream goes on into the next
/// panel. Far into the second-level cache, which can wait for more lines at once, and from there near into
/// the first; negative: not there.
struct Prefetch {
  int32_t far_bytes, near_bytes;
};
/// For who reads a panel again: nothing is asked for.
inline constexpr Prefetch kAskNothing{-1, -1};

/// out[i * kPanelRows + r] = row r of the panel . activation row i, for `count` <= kTileRows rows of
/// `columns` numbers: x[i] points to QuantBlocks, or to floats if the weight's type is a float type. An
/// element's value does not depend on count.
using PanelProduct = void (*)(const uint8_t* panel, int64_t columns, const void* const* x, int count,
                              float* out, Prefetch prefetch);

/// The same of a whole panel that was not packed, for one activation row of QuantBlocks: its rows lie as in
/// the file, row_bytes apart. What is asked for ahead lies beyond the panel. The same bits.
using FileProduct = void (*)(const std::byte* rows, int64_t row_bytes, int64_t columns, const void* x,
                             float* out, Prefetch prefetch);

/// The same of two panels that were read a moment ago and kPairRows rows, for which an activation is loaded
/// once: out[p][i * kPanelRows + r]. The same bits.
using PairProduct = void (*)(const uint8_t* const* panels, int64_t columns, const void* const* x,
                             float* const* out);

/// The same as a PanelProduct for up to kManyRows rows, which share the unpacking of the panel. The same
/// bits.
using ManyProduct = PanelProduct;

/// A panel's numbers: [columns][kPanelRows].
using PanelNumbers = void (*)(const uint8_t* panel, int64_t columns, float* out);

/// file: null for float types. pair, many, numbers: null for these, and where a tier gains nothing by it.
struct Product {
  PanelProduct panel;
  FileProduct file;
  PairProduct pair;
  ManyProduct many;
  PanelNumbers numbers;
};

struct MatmulKernels {
  /// columns: a multiple of kQuantColumns.
  void (*quantize)(const float* x, int64_t columns, QuantBlock* out);
  /// out = silu(gate) * up for `count` numbers, a multiple of kPanelRows.
  void (*silu_mul)(const float* gate, const float* up, int64_t count, float* out);
  /// Rows from which a ManyProduct is quicker than PanelProducts.
  int many_from;
  /// As the lists of formats.h have them: floats and small blocks, low ones, large ones, grids.
  const Product *small_blocks, *low_blocks, *large_blocks, *grid_blocks;
};

/// The table of a tier; the nearest one below where a tier has none of its own.
const MatmulKernels& matmul_kernels(Isa isa);

}  // namespace sluice::backend::cpu
