// What this device reaches at best: reading memory, and multiplying matrices on its tensor cores.
#pragma once

#include "program/backend.h"

namespace sluice::backend::cuda {

/// Of the current device, measured at its first call (a second), remembered.
const program::Peaks& device_peaks();

/// Bytes a second that reading the current device's memory reaches now, measured anew.
double measure_read_bandwidth();

/// Bytes a second from pinned memory to the current device's, measured anew.
double measure_link_bandwidth();

}  // namespace sluice::backend::cuda
