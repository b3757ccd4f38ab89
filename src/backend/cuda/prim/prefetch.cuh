// Weights asked for ahead of their use, into the second cache: before a kernel waits for its predecessor.
#pragma once

#include "backend/cuda/device.h"
#include "backend/cuda/format.h"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {

/// Bytes of codes that a row of `columns` takes.
__device__ inline int64_t code_bytes(quant::Type type, int64_t columns) {
  switch (type) {
    case quant::Type::F32: return columns * 4;
    case quant::Type::F16:
    case quant::Type::BF16: return columns * 2;
    case quant::Type::Q8_0: return columns;
    case quant::Type::Q2_K:
    case quant::Type::Q3_K: return columns / 4;
    default: return columns / 2;
  }
}

/// Asks for the codes of `count` flat rows from `first` on (as far as a matrix has them), the block's threads
/// together. Other planes are a tenth of them, and come along later.
__device__ inline void prefetch_rows(const Matrix& m, int64_t first, int64_t count) {
  const int64_t row = code_bytes(m.type, m.columns);
  const int64_t last = first + count < m.rows ? first + count : m.rows;
  if (last > first) prefetch_range(m.codes + (m.first_row + first) * row, (last - first) * row);
}

}  // namespace sluice::backend::cuda
