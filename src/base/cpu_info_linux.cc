#include "base/cpu_info.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/affinity.h"

namespace sluice {

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

/// The folders of this process's cgroup and of those above it, in the tree of a controller of cgroups v1, or
/// in the one tree of v2 (empty name). What a container sees of v1 are the host's paths below its own tree.
std::vector<std::string> cgroups(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line, group;
  while (std::getline(file, line)) {  // "4:cpu,cpuacct:/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos) group = line.substr(second + 1);
  }
  const std::string tree = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> folders;
  for (; group.starts_with('/') && group != "/"; group.erase(group.rfind('/')))
    folders.push_back(tree + group);
  folders.push_back(tree);
  return folders;
}

/// What is left under one cgroup's limit; kUnknownMemory without a limit ("max") or without the file.
int64_t left_in_cgroup(const std::string& folder, const char* limit_name, const char* used_name,
                       const std::string& prefix) {
  std::ifstream limit_file(folder + limit_name), used_file(folder + used_name);
  int64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return kUnknownMemory;
  for (const char* cache : {"active_file", "inactive_file"})
    used -= number_after(folder + "/memory.stat", prefix + cache, 0);
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, used));
}

/// Processors that a quota comes to; 0: there is none ("max", or -1).
double processors(double quota, double period) { return quota > 0 && period > 0 ? quota / period : 0; }

double number_in(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? number : 0;
}

int64_t total_memory_bytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : kUnknownMemory;
}

}  // namespace

int usable_threads(const std::string& root) {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (const size_t cpus = usable_cpus().size(); cpus > 0) threads = static_cast<int>(cpus);
  const auto limit = [&](double quota) {
    if (quota > 0) threads = std::clamp(static_cast<int>(std::ceil(quota)), 1, threads);
  };
  for (const std::string& folder : cgroups(root, "")) {
    std::ifstream file(folder + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
    double quota = 0, period = 0;
    if (file >> quota >> period) limit(processors(quota, period));
  }
  for (const std::string& folder : cgroups(root, "cpu"))
    limit(processors(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us")));
  return threads;
}

int64_t available_memory_bytes(const std::string& root) {
  const int64_t kilobytes = number_after(root + "/proc/meminfo", "MemAvailable:", -1);
  int64_t available = kilobytes >= 0 ? kilobytes * 1024
                      : root.empty() ? total_memory_bytes()
                                     : kUnknownMemory;
  for (const std::string& folder : cgroups(root, ""))
    available = std::min(available, left_in_cgroup(folder, "/memory.max", "/memory.current", ""));
  for (const std::string& folder : cgroups(root, "memory"))
    available = std::min(
        available, left_in_cgroup(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"));
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
