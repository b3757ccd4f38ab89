// What this process may use of the machine. Missing /proc, /sys or cgroup files mean defaults, never an
// error.
#pragma once

#include <cstdint>

namespace sluice {

/// Threads that can run at once: the affinity mask, cut by the cgroup's CPU quota; at least 1.
int usable_threads();

/// Physical memory that is free or can be freed, in bytes; 0 when it cannot be told.
int64_t available_memory_bytes();

}  // namespace sluice
