// How the clock that kernels read stands to the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::backend::cuda {

/// Nanoseconds to add to the device's clock for the host's (base/clock.h): the device is asked for its own
/// some times, and the quickest answer counts. Off by half that answer's time at most, a few microseconds.
int64_t device_clock_behind(cudaStream_t stream);

}  // namespace sluice::backend::cuda
