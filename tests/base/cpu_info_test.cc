// Available memory and the processor from /proc and cgroup trees of our own making.
#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

class OwnTree : public testing::Test {
 protected:
  OwnTree() : root_(fs::temp_directory_path() / ("sluice_cpu_info_" + std::to_string(getpid()))) {}
  ~OwnTree() override { fs::remove_all(root_); }
#if defined(SLUICE_PLAIN_BASE)
  void SetUp() override { GTEST_SKIP() << "skipped: cpu_info: the plain base reads no /proc"; }
#endif

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

class AvailableMemory : public OwnTree {
 protected:
  void meminfo() const {
    write("/proc/meminfo", "MemTotal: 9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\n");
  }
  int64_t available() const { return available_memory_bytes(root_); }
};

TEST_F(AvailableMemory, IsUnknownWithoutAnyFile) { EXPECT_EQ(available(), kUnknownMemory); }

TEST_F(AvailableMemory, IsMemAvailableWithoutCgroups) {
  meminfo();
  EXPECT_EQ(available(), 4000 * 1024);
  write("/sys/fs/cgroup/memory.max", "max\n");  // no limit is none
  write("/sys/fs/cgroup/memory.current", "123456\n");
  EXPECT_EQ(available(), 4000 * 1024);
}

TEST_F(AvailableMemory, IsWhatACgroupLeavesFileCachesCountedAsFree) {
  meminfo();
  write("/sys/fs/cgroup/memory.max", "1000000\n");
  write("/sys/fs/cgroup/memory.current", "400000\n");
  EXPECT_EQ(available(), 600000);
  write("/sys/fs/cgroup/memory.stat", "anon 5\nactive_file 100000\ninactive_file 50000\nslab 7\n");
  EXPECT_EQ(available(), 750000);
  write("/sys/fs/cgroup/memory.current", "2000000\n");
  EXPECT_EQ(available(), 0) << "over the limit, nothing is left";
}

TEST_F(AvailableMemory, TheTightestCgroupOnTheWayUpCounts) {
  meminfo();
  write("/proc/self/cgroup", "1:cpu:/other\n0::/a/b\n");
  write("/sys/fs/cgroup/a/b/memory.max", "3000000\n");
  write("/sys/fs/cgroup/a/b/memory.current", "0\n");
  EXPECT_EQ(available(), 3000000);
  write("/sys/fs/cgroup/a/memory.max", "200000\n");
  write("/sys/fs/cgroup/a/memory.current", "50000\n");
  EXPECT_EQ(available(), 150000);
}

TEST_F(AvailableMemory, CgroupsOfVersionOneCount) {
  meminfo();
  write("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n0::/\n");
  const std::string tree = "/sys/fs/cgroup/memory";
  write(tree + "/memory.limit_in_bytes", "9223372036854771712\n");  // no limit is none
  write(tree + "/memory.usage_in_bytes", "123456\n");
  EXPECT_EQ(available(), 4000 * 1024);
  write(tree + "/docker/x/memory.limit_in_bytes", "1000000\n");
  write(tree + "/docker/x/memory.usage_in_bytes", "400000\n");
  write(tree + "/docker/x/memory.stat",
        "active_file 1\ntotal_active_file 100000\ntotal_inactive_file 50000\n");
  EXPECT_EQ(available(), 750000);
  // A container's tree begins at its own group.
  fs::remove_all(root_ + tree + "/docker");
  write(tree + "/memory.limit_in_bytes", "500000\n");
  EXPECT_EQ(available(), 376544);
}

class UsableThreads : public OwnTree {};

TEST_F(UsableThreads, AreCutByQuotasOfEitherVersion) {
  const int all = usable_threads(root_);
  if (all < 2) GTEST_SKIP() << "skipped: quotas: one processor";
  write("/proc/self/cgroup", "2:cpu,cpuacct:/a/b\n0::/c/d\n");
  write("/sys/fs/cgroup/c/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_threads(root_), all);
  write("/sys/fs/cgroup/c/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable_threads(root_), 1);
  write("/sys/fs/cgroup/c/cpu.max", "110000 100000\n");  // what a second one has of it counts
  EXPECT_EQ(usable_threads(root_), 2);
  write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(usable_threads(root_), 1);
}

TEST_F(AvailableMemory, ThisMachineTells) {
  EXPECT_GE(available_memory_bytes(), 0);
  EXPECT_GE(own_memory_bytes(), 0);
}

class CpuName : public OwnTree {};

TEST_F(CpuName, IsTheModelsWhereItNamesOne) {
  write("/proc/cpuinfo",
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\nstepping\t: 1\n");
  EXPECT_EQ(cpu_name(root_), "AMD EPYC 9B14");
}

TEST_F(CpuName, SaysMoreWhereTheModelsIsOfAWholeFamily) {
  write("/proc/cpuinfo",
        "cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping\t: 8\n");
  EXPECT_EQ(cpu_name(root_), "Intel(R) Xeon(R) Processor 6-8F-8");
  write("/proc/cpuinfo", "model name\t: Intel(R) Xeon(R) Processor\n");
  EXPECT_EQ(cpu_name(root_), "Intel(R) Xeon(R) Processor");
}

TEST_F(CpuName, IsImplementerAndPartWithoutAModel) {
  write("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n");
  EXPECT_EQ(cpu_name(root_), "41-D0C");
  write("/proc/cpuinfo", "processor\t: 0\n");
  EXPECT_EQ(cpu_name(root_), "unknown");
}

}  // namespace
}  // namespace sluice
