#include "base/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

namespace {

/// The text behind "KEY:" in a file of such lines, without the blanks around it; empty when it is not there.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key)
      continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// A file's "KEY: 123 kB" in bytes; 0 when it is not there.
int64_t kilobytes_of(const char* path, const std::string& key) {
  return 1024 * std::strtoll(value_of(path, key).c_str(), nullptr, 10);
}

}  // namespace

int64_t available_memory_bytes() { return kilobytes_of("/proc/meminfo", "MemAvailable"); }

std::string cpu_name() {
  const std::string name = value_of("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

int64_t peak_memory_bytes() { return kilobytes_of("/proc/self/status", "VmHWM"); }

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace sluice
