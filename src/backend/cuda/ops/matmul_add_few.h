// matmul_add of 2 to 32 rows that come coded (ops/matmul_add_few.cu), and who codes them.
#pragma once

#include "backend/cuda/kernel.h"

namespace sluice::backend::cuda {

/// `in` in codes of eight bits, 32 under a scale (few_bytes::TokenRows), where head_matmul of some rows was
/// launched before and has left its results so in scratch; else null.
const char* coded_values(const program::Program& program, program::TensorId in, const Context& context);

/// Contexts of up to 8 rows in chunks, as attend_split leaves those of several (prim/mla_attend.cuh).
struct ContextParts {
  const int32_t* positions;
  const float2* weights;
  const float* parts;  ///< null: none
  int32_t most_chunks;
};
inline constexpr int kMostJoined = 32;  ///< chunks of a row

/// head_matmul of 2 to 32 rows; puts chunks together where they are given. Its results in codes are at the
/// beginning of scratch then, so many bytes.
void head_matmul_few(const Rows<float>& in, const Rows<float>& out, const Matrix& weight,
                     const ContextParts& parts, const Context& context);
bool serves_head_matmul_few(const program::Tensor& weight);
int64_t head_matmul_codes(const program::Tensor& weight, int64_t rows);

/// out[r] = residual[r] + weight times row r of the codes. Rows from *rows on are padding.
struct MatmulAddFew {
  const int32_t* rows;
  const char* codes;
  Matrix weight;
  Rows<float> residual, out;
};
bool serves_matmul_add_few(const Matrix& weight, int64_t rows, int architecture);
void matmul_add_few(const MatmulAddFew& product, const Context& context);

}  // namespace sluice::backend::cuda
