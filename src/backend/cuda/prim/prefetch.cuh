// Weights asked for ahead of their use, into L2: before a kernel waits for its predecessor.
#pragma once

#include "backend/cuda/host/device.h"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {

/// Bytes of codes that a row of `columns` takes. Not by find_format, whose table a device has only at compile
/// time.
__device__ inline int64_t code_bytes(quant::Type type, int64_t columns) {
  switch (type) {
    case quant::Type::F32: return columns * 4;
    case quant::Type::F16:
    case quant::Type::BF16: return columns * 2;
    default:
      int64_t bytes = 0;
      with_blocked_type(type, [&]<Type T>() { bytes = columns / 32 * Traits<T>::codes_bytes; });
      return bytes;
  }
}

}  // namespace sluice::backend::cuda
