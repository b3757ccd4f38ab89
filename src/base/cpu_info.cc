#include "base/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

namespace sluice {

int usable_threads() {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) threads = std::max(1, CPU_COUNT(&set));
  // cgroup v2: "QUOTA PERIOD" or "max PERIOD", both in microseconds.
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) {
    threads = std::clamp(static_cast<int>(std::ceil(quota / period)), 1, threads);
  }
  return threads;
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

}  // namespace sluice
