// head_matmul of 2 to 32 rows (gemv/head_matmul_small_batch.cu), for other ops that end in it, and its
// results in codes of eight bits for what multiplies them next.
#pragma once

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/int8_mma.cuh"

namespace sluice::backend::cuda {

/// Contexts of up to 8 rows in chunks, as attend_split leaves those of several (attention/mla_attend.cuh).
struct ContextParts {
  const int32_t* positions;
  const float2* weights;
  const float* parts;  ///< null: none
  int32_t most_chunks;
};
inline constexpr int kMostJoined = 32;  ///< chunks of a row

/// head_matmul of 2 to 32 rows; puts chunks together where they are given. It leaves its results in codes,
/// too, where the launch behind takes them.
void head_matmul_small_batch(const Rows<float>& in, const Rows<float>& out, const Matrix& weight,
                             const ContextParts& parts, const Context& context);
bool serves_head_matmul_small_batch(const program::Tensor& weight, const program::Tensor& out);
/// How rows of so many values lie there: 32 under a scale, with sums, whoever takes them.
inline int8_mma::TokenRows coded_values_token(int64_t columns) {
  return int8_mma::TokenRows::of(static_cast<int>(columns / int8_mma::kQuad), true);
}

/// Such values in codes (Form::RowsCodes), as an op that ends in that launch gives them.
std::optional<FormSpec> given_rows_codes(const program::Program& program, program::TensorId values,
                                         const Sizes& sizes);

}  // namespace sluice::backend::cuda
