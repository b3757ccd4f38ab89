// The CUDA backend: one graph of kernels a step. It lives in a shared object of its own (libsluice_cuda.so),
// which is loaded where a driver is present: this function is its only door.
#pragma once

#include "program/backend.h"

namespace sluice::backend {

/// A new backend on a device, by its number, owned by the caller; or null and one line in `why` [why_size]
/// when it cannot be used.
extern "C" __attribute__((visibility("default"))) program::Backend* sluice_make_cuda_backend(int device,
                                                                                             char* why,
                                                                                             size_t why_size);

}  // namespace sluice::backend
