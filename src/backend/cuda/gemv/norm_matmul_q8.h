// Rows that the op which makes them leaves for the norm_matmul behind it: times its norm's weights, in codes
// of eight bits, so that nothing packs them in between. The norm's factor multiplies the products.
#pragma once

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/int8_mma.cuh"

namespace sluice::backend::cuda {

/// Of a step of 2 to 32 rows (Form::NormedCodes). A thread block of the op that makes them has 16 columns of
/// all rows: they have a scale, and their squares are summed.
struct NormedQ8Rows {
  static constexpr int kScaled = 16;
  char* codes;  ///< [rows][token.pitch]; null: nobody takes them
  int8_mma::TokenRows token;
  float* squares;  ///< [columns / 16][kMostRows]
  const float* norm;
};

/// Rows `made` as whoever makes them gives them.
std::optional<FormSpec> given_normed_codes(const program::Program& program, program::TensorId made,
                                           const Sizes& sizes);
/// What a norm_matmul behind takes (whose norm it is), or nothing (form is null).
NormedQ8Rows rows_for(const FormBuffer* form, const program::Program& program, const Context& context);
/// What norm_matmul takes.
std::optional<FormSpec> takes_q8_rows(const program::Program& program, const program::Op& record,
                                      const Sizes& sizes);
/// norm_matmul of rows that the launch before has left so (context.takes).
void norm_matmul_q8(const program::Program& program, const program::NormMatmul& op, const Context& context);

}  // namespace sluice::backend::cuda
