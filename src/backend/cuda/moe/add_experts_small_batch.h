// What a row's experts have made, its shared experts and the residual added up
// (moe/add_experts_small_batch.cu).
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/gemv/norm_matmul_q8.h"

namespace sluice::backend::cuda {

/// out[r] = residual[r] + down times token r + sum over k of weights[r, k] times row r * used + k of each.
/// Rows from *rows on are padding.
struct AddExperts {
  const int32_t* rows;
  Matrix down;    ///< no codes: there are no shared experts
  Tokens tokens;  ///< in rows; those of whole n-tiles are read
  Rows<float> residual, weights, out;
  const float* each;   ///< [pairs][columns]
  NormedQ8Rows coded;  ///< where rows are left for the norm_matmul behind, too
};

/// Whether add_experts_small_batch takes shared experts of this type, [outputs][columns], `used` experts a
/// row.
bool serves_add_experts_small_batch(quant::Type type, int64_t outputs, int64_t columns, int64_t used,
                                    int64_t rows);
/// The same without shared experts.
bool serves_add_routed_small_batch(int64_t outputs, int64_t used, int64_t rows);
void add_experts_small_batch(const AddExperts& sum, const Context& context);

}  // namespace sluice::backend::cuda
