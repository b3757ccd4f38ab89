// How TMA finds pieces of rows of packed codes (TMA copies, compute capability 9.0): as 128 bytes of eight
// rows, so many groups of them, swizzled, so that eight rows' units of 16 bytes fall on different banks of
// shared memory; or what else of them a kernel takes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/host/device.h"

namespace sluice::backend::cuda {

inline constexpr int kMapLine = 128, kMapRows = 8;

/// Of `rows` rows of row_bytes (a multiple of group_bytes) from `base` on: a copy brings `groups` times
/// group_bytes of so many rows: [group][row][group_bytes]. Groups of 128 bytes are swizzled: unit u of row r
/// lies where unit u ^ r % 8 would be.
CUtensorMap map_tiles(const uint8_t* base, int64_t row_bytes, int64_t rows, int group_bytes, int tile_rows,
                      int groups);
/// The same of 128 bytes of eight rows.
inline CUtensorMap map_rows(const uint8_t* base, int64_t row_bytes, int64_t rows, int groups) {
  return map_tiles(base, row_bytes, rows, kMapLine, kMapRows, groups);
}

/// Of rows of row_bytes (a multiple of 16) an n-tile of them: a copy brings n_tile_bytes of kNTileRows rows.
inline constexpr int kNTileRows = 256;
CUtensorMap map_n_tiles(const uint8_t* base, int64_t row_bytes, int64_t rows, int n_tile_bytes);

/// Rows of nibbles in pairs of stretches of eight: of two matrices alike, or of one, whose eight and next
/// eight. A copy of codes brings `groups` times 128 bytes of both, [group][stretch][row][128 bytes], each
/// stretch swizzled as above; one of scales as many blocks', [stretch][row][scales]; one of top bits (of
/// types that have 8 bytes of them a block, two groups) [stretch][row][128 bytes], swizzled, too. Rows count
/// from the matrices' first one on.
struct RowPairs {
  CUtensorMap codes, scales, high;
  bool swapped;  ///< the second matrix' stretch comes first: it lies before the other one
};
RowPairs map_row_pairs(const Matrix& matrix, int groups);
RowPairs map_row_pairs(const Matrix& matrix, const Matrix& second, int groups);

}  // namespace sluice::backend::cuda
