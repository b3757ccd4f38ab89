// GEMMs' common terms: activations packed as halves, who multiplies with whom, and where results go. Plain
// structs for kernels of gemm/. Knows no Program.
#pragma once

#include <cstdint>

#include "backend/cuda/host/device.h"
#include "program/ops/silu_mul.h"

namespace sluice::backend::cuda {

/// Columns that a step of the products takes: four blocks of 32, one for each of the four lanes that share a
/// row.
inline constexpr int kChunkColumns = 128;
/// Tokens of an n-tile: the eight columns of a matrix instruction's second operand.
inline constexpr int kNTileTokens = 8;
/// Tokens that are copied to shared memory together.
inline constexpr int kGroupTokens = 32;

/// Tokens that a thread block of gemm_wgmma.cuh takes at most.
inline constexpr int kLargeTokens = 256;
/// The same where a tile has few, and two thread blocks share an SM.
inline constexpr int kSmallTileTokens = 64;

SLUICE_BOTH constexpr int64_t padded_columns(int64_t columns) {
  return (columns + kChunkColumns - 1) / kChunkColumns * kChunkColumns;
}

/// Activations as halves, every row times a power of two that takes its largest number below 2^15, so that
/// none overflows. Columns are in the order of prim/weight_fragments.cuh, padded with zeroes to whole chunks.
///   rows    [slot][chunk][j: four][block: four][pairs 4j .. 4j + 3]
///   n-tiles  [slot / 32][chunk][n-tile: 4][64 columns: 2][8 tokens][128 bytes, units of 16 swizzled]: what
///   shared memory
///           has to hold, a chunk of 32 tokens without gaps
struct Tokens {
  const uint16_t* data;
  const float* scale;  ///< [slot], what a sum is multiplied by
  int32_t chunks;
};

/// A tile's tokens: entries [first, first + count) of the list, times matrix `matrix`.
struct TokenTile {
  int32_t matrix, first, count, unused;
};

/// Which tokens go with which matrix. With tiles (experts): entry i is the pair list[i] = row * used + k, or
/// -1. Without: matrix h takes the rows of the step, and token r of it is slot h * per_matrix + r.
struct TokenPlan {
  const TokenTile* tiles;
  const int32_t* tile_count;
  const int32_t* list;
  const int32_t* rows;  ///< how many rows the step has
  int32_t per_matrix;
  int32_t tile_tokens;   ///< tokens of a tile at most
  int32_t pair_divisor;  ///< slot of a pair: pair / pair_divisor; 0: the slot is the entry's own
};

/// Where results go: out(row, head + matrix) of pair = row * used + head.
struct Sink {
  Rows<float> out;
  const float* residual;  ///< added, or null
  int64_t residual_stride;
  int32_t used;
  int32_t head_per_matrix;  ///< 1: matrix h writes head h
};

/// out = tokens times weight, or that and tokens times up made one as `form` says. Scales and biases come
/// before.
struct Product {
  Matrix weight, up;
  bool gated;
  Tokens tokens;
  TokenPlan plan;
  Sink sink;
  const float *bias = nullptr, *up_bias = nullptr;    ///< null, or [matrix][output]
  const float *scale = nullptr, *up_scale = nullptr;  ///< null, or [matrix]
  program::Swiglu form = {};

  /// Neither biases nor scales nor another activation than SiLU.
  SLUICE_BOTH bool is_plain() const {
    return bias == nullptr && up_bias == nullptr && scale == nullptr && up_scale == nullptr &&
           form.is_plain();
  }
};

/// out = silu(tokens times gate) * (tokens times up) of a few rows, whose tokens lie in rows.
struct SharedGateUp {
  Matrix gate, up;
  Tokens tokens;
  Rows<float> out;
};

/// How activations are packed. Slot i holds pair list[i] (experts) or row i % per_matrix of head i /
/// per_matrix.
struct PackPlan {
  Rows<float> in;
  const int32_t* list;   ///< or null
  const int32_t* slots;  ///< how many entries the list has; without a list: rows of the step
  int32_t per_matrix, divisor;
  bool heads_of_pairs;  ///< pair = row * divisor + head, else heads follow from the slot
  bool n_tiles;
  uint16_t* data;
  float* scale;
  const float* norm = nullptr;  ///< set: rows are normed first (ops/rms_norm.h)
  float epsilon = 0;
};

}  // namespace sluice::backend::cuda
