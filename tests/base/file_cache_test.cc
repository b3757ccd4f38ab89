// Pages of a mapped file leave the page cache; other memory is left alone.
#include "base/file_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/file.h"

namespace sluice {
namespace {

constexpr size_t kBytes = (40 << 20) + 100;  // more than a disk reads ahead at once

class FileCache : public testing::Test {
 protected:
  FileCache()
      : path_(std::filesystem::temp_directory_path() / ("sluice_file_cache_" + std::to_string(::getpid()))) {
    std::vector<std::byte> bytes(kBytes);
    for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(i / 7);
    write_file(path_, bytes);
    const int fd = ::open(path_.c_str(), O_RDWR);
    ::fdatasync(fd);  // what is not on the disk yet cannot leave
    ::close(fd);
  }
  ~FileCache() override { std::filesystem::remove(path_); }

  /// Share of the file's pages that are in the page cache.
  double cached(const MappedFile& file) const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> there((kBytes + page - 1) / page);
    auto* data = const_cast<std::byte*>(file.bytes().data());
    EXPECT_EQ(::mincore(data, kBytes, there.data()), 0);
    const auto is_there = [](unsigned char flags) { return (flags & 1) != 0; };
    return static_cast<double>(std::count_if(there.begin(), there.end(), is_there)) /
           static_cast<double>(there.size());
  }

  std::string path_;
};

TEST_F(FileCache, ADroppedFileIsReadAgain) {
#if defined(SLUICE_PLAIN_BASE)
  GTEST_SKIP() << "skipped: file_cache: the plain base cannot drop what a system caches";
#endif
  struct statfs folder {};
  if (::statfs(path_.c_str(), &folder) == 0 && folder.f_type == TMPFS_MAGIC)
    GTEST_SKIP() << "the folder for temporary files lies in memory, which its files cannot leave";
  const MappedFile file(path_);
  const std::vector<std::byte> before(file.bytes().begin(), file.bytes().end());
  EXPECT_EQ(cached(file), 1.0);
  drop_pages(file.bytes());
  EXPECT_LT(cached(file), 0.1);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), file.bytes().begin()));
}

TEST_F(FileCache, ADroppedPartComesBackBeforeItIsRead) {
  const MappedFile file(path_);
  const auto part = file.bytes().subspan(kBytes / 4 + 1, kBytes / 2);
  drop_pages(file.bytes());
  const double before = cached(file);
  bring_pages(part);
  for (int i = 0; i < 1000 && cached(file) < before + 0.4; ++i) ::usleep(10'000);
  EXPECT_GE(cached(file), std::min(1.0, before + 0.4)) << before;
}

TEST_F(FileCache, OtherMemoryIsLeftAlone) {
  const std::vector<std::byte> memory(1 << 20, std::byte{42});
  drop_pages(memory);
  bring_pages(std::span(memory).subspan(5, 10));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{42}), 1 << 20);
  {
    const MappedFile file(path_);
    drop_pages(file.bytes().first(10));  // less than a page
    EXPECT_EQ(file.bytes()[8], static_cast<std::byte>(1));
  }
  const MappedFile again(path_);  // perhaps where the one before was
  drop_pages(again.bytes());
  EXPECT_EQ(again.bytes()[kBytes - 1], static_cast<std::byte>((kBytes - 1) / 7));
}

}  // namespace
}  // namespace sluice
