// Matrices of one packed weight that become those of another.
#pragma once

#include <span>

#include "backend/cuda/host/repack.h"

namespace sluice::backend::cuda {

/// Of two weights whose matrices have `numbers` each: matrix i of `to` becomes matrix from_of[i] of `from`;
/// where that is negative, it stays.
void copy_matrices(quant::Type type, int64_t numbers, const Planes& from, std::span<const int32_t> from_of,
                   const Planes& to, cudaStream_t stream);

}  // namespace sluice::backend::cuda
