// Rows as codes of eight bits for kernels that take them so, where the launch before has not left them.
#pragma once

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/int8_mma.cuh"

namespace sluice::backend::cuda {

inline constexpr int64_t kNormedInCodes = 8192;  ///< columns of a row with a norm at most

/// codes[r] = in[r], normed where there is a norm, as int8_mma wants it: 32 under a scale. Rows from *rows on
/// are padding; rows begin at whole 16 bytes and have whole quads.
struct CodeRows {
  const int32_t* rows;
  Rows<float> in;
  char* codes;  ///< [rows][token.pitch]
  int8_mma::TokenRows token;
  const float* norm = nullptr;
  float epsilon = 0;
};
void code_rows(const CodeRows& rows, const Context& context);

}  // namespace sluice::backend::cuda
