// Rows that the op which makes them leaves for the norm_matmul behind it: times its norm's weights, in codes
// of eight bits, so that nothing packs them in between. The norm's factor multiplies the products.
#pragma once

#include "backend/cuda/gemv/f16_rows.cuh"
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

/// Leaves a row's element so. kScaled neighbouring lanes have kScaled neighbouring elements and call it
/// together; there: whether the row is. weight: the norm's of the element.
__device__ inline void leave_normed(const NormedQ8Rows& to, int row, int element, float value, float weight,
                                    bool there) {
  constexpr int kScaled = NormedQ8Rows::kScaled;
  const float normed = value * weight, largest = lane_max(fabsf(normed), kScaled);
  const int code = __float2int_rn(normed * (largest > 0 ? 127.0f / largest : 0.0f));
  const float squares = lane_sum(value * value, kScaled);
  const float codes = lane_sum(static_cast<float>(code), kScaled);
  if (!there) return;
  char* const at = to.codes + row * to.token.pitch;
  at[int8_mma::place_of_code(element)] = static_cast<char>(code);
  if (element % kScaled != 0) return;
  const int part = element / kScaled;
  reinterpret_cast<float*>(at + to.token.scales)[part] = largest * (1.0f / (16 * 127));
  reinterpret_cast<float*>(at + to.token.sums)[part] =
      int8_mma::rounded_to_19_bits(largest * (1.0f / (16 * 127)) * codes);
  to.squares[part * small_batch::kMostRows + row] = squares;
}

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
