// Files that shrink while they are mapped, and every other SIGBUS.
#include "base/mapping_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"

namespace sluice {
namespace {

class MappingGuard : public testing::Test {
 protected:
  MappingGuard()
      : path_(std::filesystem::temp_directory_path() / ("sluice_guard_" + std::to_string(getpid()))) {
    write_file(path_, std::vector<std::byte>(kBytes, std::byte{7}));
  }
  ~MappingGuard() override { std::filesystem::remove(path_); }

  void truncate() const { ASSERT_EQ(::truncate(path_.c_str(), 1), 0); }

  static constexpr size_t kBytes = 1 << 16;
  std::string path_;
};

std::byte last_byte(std::span<const std::byte> bytes) {
  return *const_cast<volatile const std::byte*>(&bytes.back());
}

/// Ended as by a SIGBUS that nobody handles; sanitizers handle it and report with their own exit codes.
bool not_handled(int status) {
#ifdef SLUICE_SANITIZED
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
#else
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
#endif
}

TEST_F(MappingGuard, ATruncatedFileEndsTheProgramWithItsName) {
  const MappedFile file(path_);
  EXPECT_EQ(last_byte(file.bytes()), std::byte{7});
  EXPECT_EXIT(
      {
        truncate();
        last_byte(file.bytes());
      },
      testing::ExitedWithCode(1), "^sluice: " + path_ + ": the file was truncated while it was in use\n$");
}

TEST_F(MappingGuard, TheNameIsThatOfTheFileThatShrank) {
  const std::string other = path_ + ".other";
  write_file(other, std::vector<std::byte>(kBytes, std::byte{8}));
  std::optional<MappedFile> first(other);
  const MappedFile second(path_), third(other);
  first.reset();
  MappedFile moved = MappedFile(path_);
  moved = MappedFile(path_);
  EXPECT_EXIT(
      {
        truncate();
        last_byte(third.bytes());
        last_byte(moved.bytes());
      },
      testing::ExitedWithCode(1), path_ + ": the file was truncated");
  std::filesystem::remove(other);
}

TEST_F(MappingGuard, ALongNameLosesItsBeginning) {
  const std::string folder =
      path_ + ".d/" + std::string(200, 'a') + "/" + std::string(200, 'b') + "/" + std::string(200, 'c');
  std::filesystem::create_directories(folder);
  std::filesystem::rename(path_, folder + "/m.gguf");
  const MappedFile file(folder + "/m.gguf");
  EXPECT_EXIT(
      {
        (void)::truncate((folder + "/m.gguf").c_str(), 1);
        last_byte(file.bytes());
      },
      testing::ExitedWithCode(1),
      "^sluice: \\.\\.\\.a+/b+/c+/m.gguf: the file was truncated while it was in use\n$");
  std::filesystem::remove_all(path_ + ".d");
}

TEST_F(MappingGuard, AnotherBusErrorKeepsItsDefaultAction) {
  const MappedFile installs(path_);
  const auto read_beyond = [this] {
    const int fd = ::open(path_.c_str(), O_RDONLY);
    void* address = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
    truncate();
    last_byte({static_cast<const std::byte*>(address), kBytes});
  };
  EXPECT_EXIT(read_beyond(), not_handled, "");
  EXPECT_EXIT(::raise(SIGBUS), not_handled, "");
}

TEST_F(MappingGuard, AnUnmappedFileIsForgotten) {
  for (size_t i = 0; i < kGuardedMappings + 10; ++i)
    const MappedFile file(path_);  // the table never fills up
  const MappedFile last(path_);
  EXPECT_EXIT(
      {
        truncate();
        last_byte(last.bytes());
      },
      testing::ExitedWithCode(1), "truncated");
}

}  // namespace
}  // namespace sluice
