// What the kernels may take for granted of a device.
#pragma once

#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

/// The device's compute capability, 90 for 9.0; or that which its code was compiled for, where that is less:
/// a device runs the PTX of an older one, and kernels lack there what the older one lacks.
int architecture_of(int device);

/// SMs of the current device.
int current_sm_count();

/// Sizes of one row on the device.
Sizes sizes_on(int device);

}  // namespace sluice::backend::cuda
