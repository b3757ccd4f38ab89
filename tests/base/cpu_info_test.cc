// Available memory from /proc and cgroup trees of our own making.
#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

class AvailableMemory : public testing::Test {
 protected:
  AvailableMemory() : root_(fs::temp_directory_path() / ("sluice_memory_" + std::to_string(getpid()))) {}
  ~AvailableMemory() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void meminfo() const {
    write("/proc/meminfo", "MemTotal: 9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\n");
  }
  int64_t available() const { return available_memory_bytes(root_); }

  std::string root_;
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

TEST_F(AvailableMemory, ThisMachineTells) {
  EXPECT_GE(available_memory_bytes(), 0);
  EXPECT_GE(own_memory_bytes(), 0);
}

}  // namespace
}  // namespace sluice
