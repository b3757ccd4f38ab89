// What the kernels of expanded latent attention share (attention/mla_expand.cu,
// attention/mla_expanded_attend.cu): how the keys and values of a head lie.
//
// Keys and values are halves in blocks of 64 columns as matrix instructions take them from shared memory
// (rows of 128 bytes, their units of 16 swizzled), in tiles of kKeys positions, so that a tile is one copy.
// Within 32 columns numbers lie as a product's sums do in registers (column 8n + 2t + j at 8t + 2n + j): so
// sums are stored by whole units. Queries are stored in the same order, which their products do not feel, and
// the values' order is undone where results are written: a thread then has eight neighbouring columns.
#pragma once

#include <cstdint>

#include "backend/cuda/host/prompts.h"

namespace sluice::backend::cuda {

inline constexpr int kExpandRank = 512, kExpandRotated = 64;  ///< columns of a cache row
inline constexpr int kExpandBlock = 64 * 2;                   ///< bytes of a row's 64 columns

/// Positions of a tile of keys and values, by the columns of the values: shared memory holds two of both.
constexpr int expanded_keys(int value) { return value > 128 ? 64 : 128; }

/// Where things lie, for the segments of the step's prompts; slots are the heads of a group, from first_head
/// on.
struct Expanded {
  StepView step;
  Cache cache;
  int32_t layer, heads, nope, value;
  char* weights;        ///< [head][of k_b, of v_b][64 columns of the rank: 8][outputs][128 bytes]
  char* latents;        ///< [tile][64 columns: 8][kExpandTile][128 bytes]
  char* rotated;        ///< [position][128 bytes]: columns of keys that all heads share
  char *keys, *values;  ///< [slot][tile of kKeys][64 columns][kKeys][128 bytes]
  int64_t capacity;     ///< positions
  int32_t first_head, slots;

  SLUICE_BOTH int64_t weights_of_head() const { return int64_t{nope + value} * kExpandRank * 2; }
};

/// Where unit `unit` of 16 bytes of a row of 128 lies.
SLUICE_BOTH constexpr int swizzled_unit(int row, int unit) { return row * 128 + ((unit ^ row) & 7) * 16; }

struct AttendExpanded {
  Expanded e;
  Rows<float> queries, out;
  const float* factors;
  float scale_log2;
};

}  // namespace sluice::backend::cuda
