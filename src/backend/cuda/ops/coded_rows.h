// Rows that the op which makes them leaves for the norm_matmul behind it: times its norm's weights, in codes
// of eight bits, so that nothing packs them in between. The norm's factor multiplies the products.
#pragma once

#include "backend/cuda/kernel.h"
#include "backend/cuda/prim/few_bytes.cuh"

namespace sluice::backend::cuda {

/// Of a step of 2 to 32 rows, at the beginning of scratch. A block of threads of the op that makes them has
/// 16 columns of all rows: they have a scale, and their squares are summed.
struct CodedRows {
  static constexpr int kScaled = 16;
  char* codes;  ///< [rows][token.pitch]; null: nobody takes them
  few_bytes::TokenRows token;
  float* squares;  ///< [columns / 16][kMostRows]
  const float* norm;
};

/// What the op behind this one takes of rows `made`.
CodedRows rows_for_next(const program::Program& program, program::TensorId made, const Context& context);
/// Its bytes of scratch at most, of rows of so many columns.
int64_t coded_rows_bytes(int64_t rows, int64_t columns);

/// norm_matmul of rows that the op before has left so; false: it has not.
bool norm_matmul_coded(const program::Program& program, const program::NormMatmul& op,
                       const Context& context);

/// Whether moe_down_add of such a step leaves its rows to who takes them (ops/wide.cu).
bool leaves_coded_rows(const program::Program& program, const program::MoeDownAdd& op, const Sizes& sizes);

}  // namespace sluice::backend::cuda
