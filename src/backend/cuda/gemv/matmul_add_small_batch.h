// matmul_add of 2 to 32 rows that come coded (gemv/matmul_add_small_batch.cu).
#pragma once

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

/// out[r] = residual[r] + bias + weight times row r of the codes, and its router's sums, or the rows for the
/// norm_matmul behind (of up to 8), where they are wanted. Rows from *rows on are padding.
struct MatmulAddSmallBatch {
  const int32_t* rows;
  const char* codes;
  Matrix weight;
  Rows<float> residual, out;
  const float* bias = nullptr;
  RouterSums sums{};
  NormedQ8Rows coded{};
};
bool serves_matmul_add_small_batch(const program::Tensor& weight, const Sizes& sizes);
void matmul_add_small_batch(const MatmulAddSmallBatch& product, const Context& context);

/// The router's sums of rows that are there, in a launch of its own: where a matmul_add has made them
/// otherwise.
void add_router_sums(const int32_t* rows, const Rows<float>& made, const RouterSums& sums,
                     const Context& context);

}  // namespace sluice::backend::cuda
