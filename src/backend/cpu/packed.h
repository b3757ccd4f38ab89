// Packed weights: a matrix in the order in which kernels stream it, of exactly the file's bits and size.
//
// 16 rows make a panel, the last one filled up with zeroes. Within a panel the blocks of the type follow each
// other along the columns, and of each block its parts, every part interleaved by rows:
//   words   32-bit words of the file's block: word i of row 0, of row 1, ... of row 15, then word i + 1. The
//   bytes of
//           a word are four codes (or twice four nibbles) of neighbouring columns, as the file holds them, so
//           a vector of 16 words times four numbers of an activation gives 16 rows at once and nothing is
//           shuffled.
//   halves  a 16-bit scale of each of the rows
//   bytes   an 8-bit scale of each of the rows
//   spread  Q5's word of fifth bits: bit j of its byte b is the fifth bit of number 4j + b
// Float types have blocks of one number: 16 of them, a column of the panel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/simd/matmul.h"
#include "backend/cpu/simd/tiles.h"
#include "backend/cpu/simd/unpack.h"
#include "quant/types.h"

namespace sluice::backend::cpu {

/// Counted up by hand when the order or the bits of panels change: files of panels (pack_file.h) then no
/// longer fit.
inline constexpr int kPackedVersion = 1;

/// Whether a type has a packed form: every type that can be decoded has.
bool can_pack(quant::Type type);

/// Whether products with this type take activations as QuantBlocks (else as floats).
bool takes_quantized(quant::Type type);

/// The products of a tier for this type.
const Product& product_of(const MatmulKernels& kernels, quant::Type type);

/// What unpacks a panel of this type to bf16; null where the tier has no such products (kernels is null) or
/// the type has none.
PanelUnpack panel_unpack(const UnpackKernels* kernels, quant::Type type);

/// The products of panels of this type on tiles while some are unpacked; null in the same way.
TiledProduct tiled_product(const TiledProducts* kernels, quant::Type type);

/// Rows from which products of such a weight go through tiles: as long as unpacking takes, byte products take
/// for so many rows (measured on Sapphire Rapids, docs/performance.md).
int tiled_from(quant::Type type);
/// The least of all types.
inline constexpr int kLeastTiled = 12;

/// Bytes of a panel of `columns` numbers a row.
int64_t panel_bytes(quant::Type type, int64_t columns);

/// Bytes of a matrix of `rows` rows: whole panels.
int64_t packed_bytes(quant::Type type, int64_t rows, int64_t columns);

/// Packs one panel from `rows` <= kPanelRows rows of the file's format, row_bytes apart.
void pack_panel(quant::Type type, const std::byte* rows_data, int64_t row_bytes, int64_t rows,
                int64_t columns, uint8_t* panel);

/// One row of a panel decoded to float32, the same numbers as the file's row.
void decode_packed_row(quant::Type type, const uint8_t* panel, int64_t row, int64_t columns, float* out);

}  // namespace sluice::backend::cpu
