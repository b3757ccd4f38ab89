// Work on a device held to some of its SMs by a green context of the driver: what a GPU with fewer would do.
// No setting of the device is touched. All streams are made here, so that none works elsewhere.
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::backend::cuda {

/// From now on streams of the device work on so many of its SMs, or on somewhat more, as the driver shares
/// them out; for as long as the process lives, and before its first stream is made. Throws Error where the
/// driver cannot.
void hold_to_sms(int device, int sms);

/// SMs that work on the device has: all of them, unless it was held to fewer.
int sm_count_of(int device);

/// A new stream of the current device, which does not wait for the default one; its owner destroys it.
cudaStream_t make_stream();

}  // namespace sluice::backend::cuda
