// Packing takes the memory of the file, not twice that: what was read is given back, out of the page cache
// too.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu_info.h"
#include "gguf/synth.h"
#include "model/model.h"
#include "support/command.h"
#include "support/golden.h"

namespace sluice::test {
namespace {

/// Whether the pages of this folder's files cannot leave the page cache.
bool lies_in_memory(const std::string& folder) {
  struct statfs of {};
  return ::statfs(folder.c_str(), &of) == 0 && of.f_type == TMPFS_MAGIC;
}
constexpr const char* kLiesInMemory = "the folder for temporary files lies in memory";

/// A file of 300 MB, some of its pages looked at through a mapping of the test's own that touches none.
class PackingMemory : public testing::Test, public CommandFolder {
 protected:
  PackingMemory() : CommandFolder("packing_memory") {}

  static constexpr int64_t kCachePages = 16;

  void SetUp() override {
    if (!has_proc()) GTEST_SKIP() << "no /proc here: memory cannot be measured";
    if (lies_in_memory(path(""))) GTEST_SKIP() << kLiesInMemory;
    gguf::SynthModel shape = *gguf::find_synth_model("youtu-llm-2b");
    shape.vocabulary = 4096;
    shape.layers = 10;
    const gguf::SynthOptions options = {.model = &shape, .mix = gguf::find_synth_mix("q4_0")};
    gguf::write_synth(options, gguf::plan_synth(options), path("m.gguf"), [](uint64_t, uint64_t) {});
    ASSERT_GT(file_bytes(), 250'000'000);
    std::ofstream("/dev/null") << std::ifstream(path("m.gguf")).rdbuf();
    const int fd = ::open(path("m.gguf").c_str(), O_RDWR);
    ::fdatasync(fd);  // pages that are not on the disk yet cannot go
    map_ = ::mmap(nullptr, static_cast<size_t>(file_bytes()), PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    ASSERT_NE(map_, MAP_FAILED);
  }
  void TearDown() override {
    if (map_ != nullptr) ::munmap(map_, static_cast<size_t>(file_bytes()));
  }
  int64_t file_bytes() const { return static_cast<int64_t>(std::filesystem::file_size(path("m.gguf"))); }

  /// Bytes of the file in the page cache.
  int64_t cached_bytes() const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> there((static_cast<size_t>(file_bytes()) + page - 1) / page);
    EXPECT_EQ(::mincore(map_, static_cast<size_t>(file_bytes()), there.data()), 0);
    const auto is_there = [](unsigned char flags) { return (flags & 1) != 0; };
    return static_cast<int64_t>(page) * std::count_if(there.begin(), there.end(), is_there);
  }

 private:
  void* map_ = nullptr;
};

TEST_F(PackingMemory, PeakIsTheFileTheCacheAndLittleMore) {
  ASSERT_GT(cached_bytes(), file_bytes() * 9 / 10) << "the test wants a warm file";
  const model::Model model = model::Model::load(path("m.gguf"));
  const int64_t before = own_memory_bytes();
  int64_t peak = 0, calls = 0;
  const auto look = [&](int64_t, int64_t) {
    ++calls;
    peak = std::max(peak, own_memory_bytes() - before + cached_bytes());
  };
  const program::CompileOptions options{512, 1, kCachePages};
  const auto backend = backend::make_cpu_backend({.threads = 2});
  const int64_t cache = backend->memory_needs(model.program, options).cache_bytes;
  const auto executable = backend->compile(model.program, model.weights, options, look);
  EXPECT_GT(calls, 20);
  EXPECT_GT(peak, file_bytes() * 9 / 10);
  // Without giving back what was read it would be twice the file.
  EXPECT_LE(peak, file_bytes() + cache + 100'000'000);
  EXPECT_LE(cached_bytes(), file_bytes() / 10);
  RecordProperty("peak_over_file_mb", std::to_string((peak - file_bytes()) / 1'000'000));
}

TEST_F(PackingMemory, WithoutRepackingNothingIsCopied) {
  const model::Model model = model::Model::load(path("m.gguf"));
  const int64_t before = own_memory_bytes();
  const auto backend = backend::make_cpu_backend({.threads = 2, .repack = false});
  const auto executable = backend->compile(model.program, model.weights, {512, 1, kCachePages});
  EXPECT_LE(own_memory_bytes() - before, file_bytes() / 3);
}

/// What leaves the page cache takes neighbours along, and is read again by megabytes where it was not packed
/// yet: weights that left one by one had this file read 35 times from a disk that reads 8 MB ahead.
TEST(PackingReads, AFileOfSmallWeightsLittleMoreThanOnce) {
  const CommandFolder folder("packing_reads");
  if (lies_in_memory(folder.path(""))) GTEST_SKIP() << kLiesInMemory;
  const std::string file = folder.path("m.gguf");
  std::filesystem::copy_file(source_path("models/fairy-tales.gguf"), file);
  const int fd = ::open(file.c_str(), O_RDWR);
  ::fdatasync(fd);  // pages that are not on the disk yet cannot go
  ::close(fd);
  const model::Model model = model::Model::load(file);
  const auto read_bytes = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return 512 * static_cast<int64_t>(usage.ru_inblock);
  };
  const int64_t before = read_bytes();
  const auto executable =
      backend::make_cpu_backend({.threads = 2})->compile(model.program, model.weights, {512, 1, 16});
  EXPECT_LE(read_bytes() - before, 4 * static_cast<int64_t>(std::filesystem::file_size(file)));
}

}  // namespace
}  // namespace sluice::test
