// What every system with POSIX tells: how many processors there are, how much memory, and what was taken.
#include "base/cpu_info.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace sluice {

int usable_threads(const std::string&) {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// All that the machine has: nobody says what is left of it.
int64_t available_memory_bytes(const std::string&) {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : kUnknownMemory;
}

int64_t own_memory_bytes() { return 0; }

std::string cpu_name(const std::string&) { return "unknown"; }

int64_t peak_memory_bytes() {
#if defined(__APPLE__)
  constexpr int64_t kUnit = 1;
#else
  constexpr int64_t kUnit = 1024;
#endif
  struct rusage usage {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * kUnit : 0;
}

/// It cannot be.
void reset_peak_memory() {}

}  // namespace sluice
