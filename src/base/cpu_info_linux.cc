#include "base/cpu_info.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "base/affinity.h"

namespace sluice {

int usable_threads() {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (const size_t cpus = usable_cpus().size(); cpus > 0) threads = static_cast<int>(cpus);
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
std::string value_of(const std::string& path, const std::string& key) {
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

/// The number after a name at the beginning of a line: "active_file 1234"; `absent` without one.
int64_t number_after(const std::string& path, const std::string& name, int64_t absent) {
  std::ifstream file(path);
  std::string word, rest;
  int64_t number = 0;
  while (file >> word) {
    if (word == name) return file >> number ? number : absent;
    std::getline(file, rest);
  }
  return absent;
}

/// What is left under one cgroup's memory.max; kUnknownMemory without a limit ("max") or without the file.
int64_t left_in_cgroup(const std::string& folder) {
  std::ifstream limit_file(folder + "/memory.max"), used_file(folder + "/memory.current");
  int64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return kUnknownMemory;
  for (const char* cache : {"active_file", "inactive_file"})
    used -= number_after(folder + "/memory.stat", cache, 0);
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, used));
}

/// This process's cgroup as a path below the tree's root: "/a/b", or "" for the root itself.
std::string own_cgroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::/")) return line == "0::/" ? "" : line.substr(3);
  }
  return "";
}

int64_t total_memory_bytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : kUnknownMemory;
}

}  // namespace

int64_t available_memory_bytes(const std::string& root) {
  const int64_t kilobytes = number_after(root + "/proc/meminfo", "MemAvailable:", -1);
  int64_t available = kilobytes >= 0 ? kilobytes * 1024
                      : root.empty() ? total_memory_bytes()
                                     : kUnknownMemory;
  for (std::string group = own_cgroup(root);; group.erase(group.rfind('/'))) {
    available = std::min(available, left_in_cgroup(fmt::format("{}/sys/fs/cgroup{}", root, group)));
    if (group.empty()) break;
  }
  return available;
}

int64_t own_memory_bytes() { return 1024 * number_after("/proc/self/status", "RssAnon:", 0); }

std::string cpu_name(const std::string& root) {
  const std::string path = root + "/proc/cpuinfo";
  const auto number = [&](const char* key) { return std::strtol(value_of(path, key).c_str(), nullptr, 0); };
  std::string name = value_of(path, "model name");
  if (name.empty()) {  // aarch64
    const bool told = number("CPU implementer") > 0;
    return told ? fmt::format("{:X}-{:X}", number("CPU implementer"), number("CPU part")) : "unknown";
  }
  if (name.find_first_of("0123456789") != std::string::npos || number("cpu family") == 0) return name;
  return fmt::format("{} {}-{:X}-{}", name, number("cpu family"), number("model"), number("stepping"));
}

int64_t peak_memory_bytes() { return 1024 * number_after("/proc/self/status", "VmHWM:", 0); }

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace sluice
