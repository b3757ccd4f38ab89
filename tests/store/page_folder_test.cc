// Pages on a disk, and everything that may happen to them there.
#include "store/page_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "store/folder.h"

namespace sluice::store {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::key_of;
using test::OwnFolder;
using test::page_files;

const PageKey kRoot = root_key("a model");
constexpr int64_t kFile = 5056;  ///< of a page of 5,000 bytes

PageFolder open(const OwnFolder& own, int64_t limit = 1 << 30, const PageKey& root = kRoot) {
  return {{.path = own.path(), .limit_bytes = limit, .least_free_bytes = 0}, root, "a model"};
}

bool has(PageFolder& folder, int n) {
  std::vector<std::byte> bytes(5000);
  const bool found = folder.read(key_of(n), bytes);
  EXPECT_TRUE(!found || bytes == bytes_of(n)) << n;
  return found;
}

mode_t mode_of(const fs::path& path) {
  struct stat found {};
  EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

TEST(PageFolder, GivesWhatWasWrittenToWhoeverComesLater) {
  const OwnFolder own;
  {
    PageFolder folder = open(own);
    EXPECT_FALSE(folder.holds(key_of(1)));
    EXPECT_TRUE(folder.write(key_of(1), bytes_of(1)));
    EXPECT_TRUE(folder.write(key_of(2), bytes_of(2)));
    EXPECT_TRUE(folder.write(key_of(2), bytes_of(2)));
    EXPECT_EQ(folder.stats().pages, 2);
    EXPECT_EQ(folder.stats().bytes, 2 * kFile);
  }
  PageFolder folder = open(own);
  EXPECT_TRUE(folder.holds(key_of(1)));
  EXPECT_TRUE(has(folder, 1));
  EXPECT_TRUE(has(folder, 2));
  EXPECT_FALSE(has(folder, 3));
  EXPECT_EQ(folder.stats().damaged, 0);
  PageFolder other = open(own, 1 << 30, root_key("another model"));
  EXPECT_FALSE(other.holds(key_of(1))) << "models share a folder and nothing else";
  EXPECT_FALSE(has(other, 1));
  EXPECT_EQ(other.stats().pages, 0);
  EXPECT_EQ(other.stats().all_bytes, 2 * kFile);
}

TEST(PageFolder, IsItsOwnersAlone) {
  const OwnFolder own;
  const mode_t before = ::umask(0);
  PageFolder folder = open(own);
  folder.write(key_of(1), bytes_of(1));
  ::umask(before);
  EXPECT_EQ(mode_of(own.path()), 0700u);
  EXPECT_EQ(mode_of(own.path() / kRoot.hex()), 0700u);
  EXPECT_EQ(mode_of(own.path() / kRoot.hex() / "model"), 0600u);
  ASSERT_EQ(page_files(own.path()).size(), 1u);
  EXPECT_EQ(mode_of(page_files(own.path()).front()), 0600u);
}

TEST(PageFolder, WhereOthersMayWriteIsNoPlaceForIt) {
  const OwnFolder own;
  fs::create_directory(own.path());
  ::chmod(own.path().c_str(), 0777);
  try {
    open(own);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("others may write there"));
  }
  ::chmod(own.path().c_str(), 0755);
  EXPECT_NO_THROW(open(own));
  std::ofstream(own.path("file")) << "text";
  EXPECT_THROW(PageFolder({.path = own.path("file")}, kRoot, ""), Error);
}

TEST(PageFolder, IsFoundWhereNothingCanBeMade) {
  PageFolder folder({.path = "/proc/no/such/folder"}, kRoot, "");
  EXPECT_FALSE(folder.write(key_of(1), bytes_of(1)));
  EXPECT_THAT(folder.stats().problem, testing::HasSubstr("/proc/no/such/folder"));
  EXPECT_FALSE(has(folder, 1));
  folder.look();
  folder.clear();
}

// Each of many folders is damaged somewhere; no page of it is ever another one's or half a one.
TEST(PageFolder, DamagedFilesAreNeverTakenForPages) {
  std::mt19937 random(4);
  const auto at_random = [&](size_t below) { return static_cast<size_t>(random() % below); };
  int64_t damaged = 0;
  for (int round = 0; round < 300; ++round) {
    const OwnFolder own;
    {
      PageFolder folder = open(own);
      for (int n = 0; n < 3; ++n) ASSERT_TRUE(folder.write(key_of(n), bytes_of(n)));
    }
    const std::vector<fs::path> files = page_files(own.path());
    const fs::path& file = files[at_random(files.size())];
    const fs::path& other = files[at_random(files.size())];
    switch (round % 6) {
      case 0: fs::resize_file(file, at_random(kFile)); break;
      case 1: {  // a bit is flipped
        std::fstream open(file, std::ios::in | std::ios::out | std::ios::binary);
        const auto at = static_cast<std::streamoff>(at_random(kFile));
        open.seekg(at);
        const auto byte = static_cast<char>(open.get() ^ (1 << at_random(8)));
        open.seekp(at);
        open.put(byte);
        break;
      }
      case 2: {  // a stretch is zeros, as a disk that lost power may leave it
        std::fstream open(file, std::ios::in | std::ios::out | std::ios::binary);
        const size_t from = at_random(kFile);
        open.seekp(static_cast<std::streamoff>(from));
        const std::string zeros(std::min<size_t>(1 + at_random(4096), kFile - from), '\0');
        open.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
        break;
      }
      case 3:  // another page's file
        if (file != other) fs::copy_file(other, file, fs::copy_options::overwrite_existing);
        break;
      case 4: fs::remove(file), fs::create_directory(file); break;
      case 5: fs::remove(file), fs::create_symlink(other, file); break;
    }
    PageFolder folder = open(own);
    int there = 0;
    for (int n = 0; n < 3; ++n) there += has(folder, n);
    EXPECT_GE(there, 2) << round;
    damaged += 3 - there;
    // What could not be read is written anew, but where something else stands in its place.
    for (int n = 0; n < 3; ++n) folder.write(key_of(n), bytes_of(n));
    if (round % 6 != 4) {
      for (int n = 0; n < 3; ++n) EXPECT_TRUE(has(folder, n)) << round;
    }
  }
  EXPECT_GT(damaged, 240) << "rounds that damage a file do";
}

TEST(PageFolder, AnotherVersionsFilesAreNotRead) {
  const OwnFolder own;
  PageFolder folder = open(own);
  folder.write(key_of(1), bytes_of(1));
  std::fstream file(page_files(own.path()).front(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8);
  file.put(2);
  file.close();
  EXPECT_FALSE(has(folder, 1));
  std::vector<std::byte> shorter(4000);
  folder.write(key_of(2), bytes_of(2));
  EXPECT_FALSE(folder.read(key_of(2), shorter)) << "a page of another length";
}

TEST(PageFolder, FilesUsedLongestAgoGoFirst) {
  const OwnFolder own;
  PageFolder folder = open(own, 4 * kFile);
  for (int n = 0; n < 4; ++n) ASSERT_TRUE(folder.write(key_of(n), bytes_of(n)));
  EXPECT_TRUE(has(folder, 0)) << "and so it is the one used last";
  ASSERT_TRUE(folder.write(key_of(4), bytes_of(4)));
  ASSERT_TRUE(folder.write(key_of(5), bytes_of(5)));
  EXPECT_EQ(folder.stats().all_bytes, 4 * kFile);
  EXPECT_EQ(page_files(own.path()).size(), 4u);
  for (const int n : {0, 3, 4, 5}) EXPECT_TRUE(has(folder, n)) << n;
  PageFolder other = open(own, 4 * kFile, root_key("another model"));
  ASSERT_TRUE(other.write(key_of(1), bytes_of(1)));
  EXPECT_EQ(page_files(own.path()).size(), 4u) << "all models' together are within the limit";
  EXPECT_FALSE(other.write(key_of(2), bytes_of(2, 5 * kFile)));
}

TEST(PageFolder, AFullDiskKeepsNoMoreThanItHas) {
  const OwnFolder own;
  PageFolder folder({.path = own.path(), .least_free_bytes = int64_t{1} << 60}, kRoot, "");
  EXPECT_FALSE(folder.write(key_of(1), bytes_of(1)));
  EXPECT_THAT(folder.stats().problem, testing::HasSubstr("has no room"));
  {
    PageFolder before = open(own);
    for (int n = 1; n < 4; ++n) ASSERT_TRUE(before.write(key_of(n), bytes_of(n)));
  }
  PageFolder full({.path = own.path(), .least_free_bytes = int64_t{1} << 60}, kRoot, "");
  EXPECT_TRUE(full.write(key_of(9), bytes_of(9))) << "in place of the oldest";
  EXPECT_EQ(full.stats().pages, 3);
  EXPECT_FALSE(has(full, 1));
}

// The disk takes no more in the middle of a file: a child may write files of 3,000 bytes at most.
TEST(PageFolder, AFileThatCannotBeFinishedIsNone) {
  const OwnFolder own;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{3000, 3000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    PageFolder folder = open(own);
    const bool written = folder.write(key_of(1), bytes_of(1));
    ::_exit(written || folder.stats().problem.empty() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(page_files(own.path()), testing::IsEmpty());
  PageFolder folder = open(own);
  EXPECT_FALSE(folder.holds(key_of(1)));
  EXPECT_TRUE(folder.write(key_of(1), bytes_of(1)));
}

// Writers are killed at any moment; what is there afterwards is whole.
TEST(PageFolder, AKillLeavesWholePagesAlone) {
  const OwnFolder own;
  int64_t pages = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      PageFolder folder = open(own);
      for (int n = 0;; ++n) folder.write(key_of(1000 * round + n), bytes_of(1000 * round + n, 5000));
    }
    ::usleep(static_cast<useconds_t>(2000 + 700 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    PageFolder folder = open(own);
    for (int n = 0; folder.holds(key_of(1000 * round + n)); ++n, ++pages)
      EXPECT_TRUE(has(folder, 1000 * round + n)) << n;
    EXPECT_EQ(folder.stats().damaged, 0);
  }
  EXPECT_GT(pages, 20);
}

TEST(PageFolder, WhatNobodyFinishedGoesAfterAWhile) {
  const OwnFolder own;
  open(own);
  const fs::path fresh = own.path() / kRoot.hex() / "unfinished-1-1",
                 old = own.path() / kRoot.hex() / "unfinished-1-2";
  for (const fs::path& path : {fresh, old}) std::ofstream(path) << "half a page";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  open(own);
  EXPECT_TRUE(fs::exists(fresh)) << "somebody may be writing it";
  EXPECT_FALSE(fs::exists(old));
}

TEST(PageFolder, SeveralWritersAndReadersShareIt) {
  const OwnFolder own;
  std::vector<std::thread> threads;
  for (int who = 0; who < 4; ++who) {
    threads.emplace_back([&, who] {
      PageFolder folder = open(own, 20 * kFile);
      for (int n = 0; n < 100; ++n) {
        EXPECT_TRUE(folder.write(key_of(n), bytes_of(n)));
        has(folder, n - who);
        if (n % 20 == 0) folder.look();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  PageFolder folder = open(own, 20 * kFile);
  EXPECT_EQ(folder.stats().damaged, 0);
  EXPECT_GE(folder.stats().pages, 10);
  ASSERT_TRUE(folder.write(key_of(1000), bytes_of(1000)));
  EXPECT_LE(folder.stats().all_bytes, 20 * kFile);
}

TEST(PageFolder, IsListedAndClearedByModel) {
  const OwnFolder own;
  PageFolder folder = open(own), other = open(own, 1 << 30, root_key("another model"));
  folder.write(key_of(1), bytes_of(1));
  other.write(key_of(1), bytes_of(1));
  other.write(key_of(2), bytes_of(2));
  std::ofstream(own.path() / "notes.txt") << "somebody's";
  std::ofstream(own.path() / kRoot.hex() / "notes.txt") << "somebody's";
  std::vector<FolderModel> models = PageFolder::list(own.path());
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].root, root_key("another model")) << "used last";
  EXPECT_EQ(models[0].pages, 2);
  EXPECT_EQ(models[0].bytes, 2 * kFile);
  EXPECT_EQ(models[1].name, "a model");
  folder.clear();
  EXPECT_FALSE(folder.holds(key_of(1)));
  EXPECT_TRUE(has(other, 1));
  EXPECT_TRUE(folder.write(key_of(3), bytes_of(3)));
  PageFolder::clear(own.path(), nullptr);
  EXPECT_THAT(page_files(own.path()), testing::IsEmpty());
  EXPECT_TRUE(fs::exists(own.path() / "notes.txt"));
  EXPECT_TRUE(fs::exists(own.path() / kRoot.hex() / "notes.txt"));
  EXPECT_TRUE(folder.write(key_of(4), bytes_of(4))) << "its folder is made anew";
  EXPECT_TRUE(other.write(key_of(4), bytes_of(4)));
  EXPECT_THROW(PageFolder::list(own.path("nowhere")), Error);
}

}  // namespace
}  // namespace sluice::store
