// What the kernels may take for granted of a device.
#pragma once

namespace sluice::backend::cuda {

/// The device's compute capability, 90 for 9.0; or that which its code was compiled for, where that is less:
/// a device runs the PTX of an older one, and kernels lack there what the older one lacks.
int architecture_of(int device);

}  // namespace sluice::backend::cuda
