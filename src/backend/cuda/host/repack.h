// Blocks of a file's format become planes (host/format.h), on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quant/types.h"

namespace sluice::backend::cuda {

/// Where the planes of a tensor begin; `count` numbers are packed one plane behind the other.
struct Planes {
  uint8_t *codes, *high, *scale, *super;
};

/// Repacks `count` numbers (a multiple of 256, or the end of the tensor) that begin `first` numbers (a
/// multiple of 256) from the tensor's start. raw: their bytes in the file's format, in device memory. Blocked
/// types only.
void repack(quant::Type type, const uint8_t* raw, int64_t first, int64_t count, const Planes& planes,
            cudaStream_t stream);

}  // namespace sluice::backend::cuda
