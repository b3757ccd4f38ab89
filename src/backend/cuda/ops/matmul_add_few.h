// matmul_add of 2 to 32 rows that come coded (ops/matmul_add_few.cu), and who codes them.
#pragma once

#include "backend/cuda/kernel.h"

namespace sluice::backend::cuda {

/// `in` in codes of eight bits, 32 under a scale (few_bytes::TokenRows), where head_matmul of some rows was
/// launched before and has left its results so in scratch; else null.
const char* coded_values(const program::Program& program, program::TensorId in, const Context& context);

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
