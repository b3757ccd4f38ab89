// What products are added to.
#pragma once

#include "backend/cuda/host/memory.h"

namespace sluice::backend::cuda {

/// Of an op without a residual: the same row of zeroes for every row of `out`.
Rows<float> residual_rows(const Memory& memory, program::TensorId residual, program::TensorId out);

}  // namespace sluice::backend::cuda
