// What this process may use of the machine. Missing /proc, /sys or cgroup files mean defaults, never an
// error.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace sluice {

/// Threads that can run at once: the affinity mask, cut by the CPU quotas of its cgroup and of those above it
/// (v1 or v2); at least 1. `root` as below.
int usable_threads(const std::string& root = "");

/// Physical memory that this process may still take, in bytes: what is free or can be freed (MemAvailable),
/// cut by what is left under the limit of its cgroup (v1 or v2) and of those above; file caches count as
/// free. Without /proc all that the machine has; kUnknownMemory when that cannot be told either. `root`
/// stands before /proc and /sys, for tests.
inline constexpr int64_t kUnknownMemory = std::numeric_limits<int64_t>::max();
int64_t available_memory_bytes(const std::string& root = "");

/// Physical memory that this process has for itself now, in bytes: not what it shares with a file; 0 when it
/// cannot be told.
int64_t own_memory_bytes();

/// The processor's name, as "AMD EPYC 9B14". A name without a digit, as virtual machines give it, gets
/// family, model (hexadecimal) and stepping: "Intel(R) Xeon(R) Processor 6-8F-8"; without a name there are
/// implementer and part: "41-D0C"; "unknown" when nothing is told. `root` stands before /proc, for tests.
std::string cpu_name(const std::string& root = "");

/// The most physical memory that this process held since it began, or since reset_peak_memory(), in bytes; 0
/// when it cannot be told. Pages of mapped files count.
int64_t peak_memory_bytes();
void reset_peak_memory();

}  // namespace sluice
