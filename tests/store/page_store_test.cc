// The tiers behind a device's cache: who brings pages and who wants them.
#include "store/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "store/folder.h"

namespace sluice::store {
namespace {

using test::bytes_of;
using test::key_of;
using test::OwnFolder;
using State = PageStore::State;
using Place = PageStore::Place;

constexpr int64_t kPage = 1 << 20;

std::shared_ptr<std::byte[]> memory(int64_t bytes) {
  return std::shared_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]);
}

StoreOptions in_memory(int64_t pages = 64) {
  return {.identity = "a model",
          .name = "a model",
          .slot_bytes = kPage,
          .ram_bytes = pages * kPage,
          .memory = memory};
}
StoreOptions on_disk(const OwnFolder& own) {
  StoreOptions options = in_memory();
  options.disk = {.path = own.path(), .least_free_bytes = 0};
  options.threads = 2;
  return options;
}

bool put(PageStore& store, int n) {
  for (int i = 0; i < 1000; ++i) {
    if (const auto slot = store.begin(key_of(n))) {
      std::memcpy(store.bytes(*slot).data(), bytes_of(n).data(), 5000);
      store.fill(*slot, 5000);
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // its memory may not be there yet
  }
  return false;
}

bool get(PageStore& store, int n) {
  auto held = store.hold(key_of(n), 5000);
  for (int i = 0; i < 1000 && held.state == State::NoRoom; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    held = store.hold(key_of(n), 5000);
  }
  if (held.state != State::Ready && held.state != State::Reading) return false;
  while (store.state(held.slot) == State::Reading) std::this_thread::yield();
  const bool is_there = store.state(held.slot) == State::Ready;
  EXPECT_TRUE(!is_there || std::memcmp(store.bytes(held.slot).data(), bytes_of(n).data(), 5000) == 0) << n;
  store.release(held.slot);
  return is_there;
}

TEST(PageStore, KeepsAsManyPagesAsItHasMemoryFor) {
  PageStore store(in_memory(64));
  for (int n = 0; n < 64; ++n) ASSERT_TRUE(put(store, n));
  EXPECT_FALSE(store.begin(key_of(3))) << "it is there";
  EXPECT_TRUE(get(store, 0)) << "and so it is used last";
  store.touch(key_of(1));
  ASSERT_TRUE(put(store, 64));
  ASSERT_TRUE(put(store, 65));
  EXPECT_EQ(store.stats().ram_pages, 64);
  EXPECT_EQ(store.stats().ram_bytes, 64 * 5000);
  EXPECT_EQ(store.stats().kept_total, 66);
  for (int n = 0; n < 66; ++n) EXPECT_EQ(store.find(key_of(n)) == Place::Memory, n != 2 && n != 3) << n;
  EXPECT_EQ(store.hold(key_of(2), 5000).state, State::Absent);
  EXPECT_EQ(store.hold(key_of(5), 4999).state, State::Absent) << "a page of another length";
}

TEST(PageStore, WhatIsHeldStays) {
  PageStore store(in_memory(64));
  for (int n = 0; n < 64; ++n) ASSERT_TRUE(put(store, n));
  std::vector<PageStore::Slot> held;
  for (int n = 0; n < 64; ++n) held.push_back(store.hold(key_of(n), 5000).slot);
  EXPECT_FALSE(store.begin(key_of(100))) << "there is no room";
  store.release(held[7]);
  const auto slot = store.begin(key_of(100));
  ASSERT_TRUE(slot);
  EXPECT_EQ(store.find(key_of(7)), Place::None);
  EXPECT_EQ(store.find(key_of(100)), Place::None) << "nobody has filled it";
  store.give_up(*slot);
  for (int n = 0; n < 64; ++n)
    if (n != 7) store.release(held[static_cast<size_t>(n)]);
  store.clear();
  EXPECT_EQ(store.stats().ram_pages, 0);
}

TEST(PageStore, WritesBehindAndReadsAgainAfterARestart) {
  const OwnFolder own;
  {
    PageStore store(on_disk(own));
    for (int n = 0; n < 100; ++n) ASSERT_TRUE(put(store, n));
    EXPECT_TRUE(store.flush(10));
    EXPECT_EQ(store.stats().written_total, 100);
    EXPECT_EQ(store.stats().disk_pages, 100);
  }
  PageStore store(on_disk(own));
  EXPECT_EQ(store.find(key_of(50)), Place::Disk);
  EXPECT_EQ(store.read_seconds_per_byte(), 0) << "nothing is known yet";
  for (int n = 0; n < 100; ++n) EXPECT_TRUE(get(store, n)) << n;
  EXPECT_FALSE(get(store, 100));
  EXPECT_EQ(store.stats().read_total, 100);
  EXPECT_GT(store.read_seconds_per_byte(), 0);
  StoreOptions other = on_disk(own);
  other.identity = "another model";
  PageStore of_other(other);
  EXPECT_FALSE(get(of_other, 50));
}

TEST(PageStore, DestructionWritesWhatIsToBeWritten) {
  const OwnFolder own;
  {
    PageStore store(on_disk(own));
    for (int n = 0; n < 40; ++n) ASSERT_TRUE(put(store, n));
  }
  EXPECT_EQ(test::page_files(own.path()).size(), 40u);
}

TEST(PageStore, ADamagedPageIsAbsentAndComesAnew) {
  const OwnFolder own;
  {
    PageStore store(on_disk(own));
    ASSERT_TRUE(put(store, 1));
  }
  std::filesystem::resize_file(test::page_files(own.path()).front(), 100);
  PageStore store(on_disk(own));
  EXPECT_FALSE(get(store, 1));
  EXPECT_EQ(store.stats().damaged_total, 1);
  ASSERT_TRUE(put(store, 1));
  EXPECT_TRUE(get(store, 1));
}

TEST(PageStore, ADiskThatTakesNothingHoldsNobodyUp) {
  StoreOptions options = in_memory(20);
  options.disk = {.path = "/proc/no/such/folder"};
  PageStore store(options);
  for (int n = 0; n < 200; ++n) ASSERT_TRUE(put(store, n));
  EXPECT_TRUE(store.flush(10));
  EXPECT_EQ(store.stats().lost_total, 200);
  EXPECT_THAT(store.stats().problem, testing::HasSubstr("/proc/no/such/folder"));
  EXPECT_TRUE(get(store, 199)) << "in memory it is there all the same";
}

TEST(PageStore, MemoryThatIsNotThereIsNoReasonToFail) {
  StoreOptions options = in_memory(1000);
  options.memory = [](int64_t bytes) -> std::shared_ptr<std::byte[]> {
    static std::atomic<int> calls{0};
    if (++calls > 2) throw std::bad_alloc();
    return memory(bytes);
  };
  PageStore store(options);
  for (int n = 0; n < 600; ++n) ASSERT_TRUE(put(store, n));
  EXPECT_EQ(store.stats().ram_pages, 512);
  EXPECT_EQ(store.stats().ram_limit_bytes, 512 * kPage);
}

TEST(PageStore, ManyThreadsBringAndWantPages) {
  const OwnFolder own;
  StoreOptions options = on_disk(own);
  options.ram_bytes = 0;
  PageStore store(options);
  std::vector<std::thread> threads;
  for (int who = 0; who < 4; ++who) {
    threads.emplace_back([&, who] {
      std::mt19937 random(static_cast<uint32_t>(who));
      for (int i = 0; i < 300; ++i) {
        const int n = static_cast<int>(random() % 150);
        if (store.find(key_of(n)) != Place::None) {
          get(store, n);
        } else if (const auto slot = store.begin(key_of(n))) {
          std::memcpy(store.bytes(*slot).data(), bytes_of(n).data(), 5000);
          store.fill(*slot, 5000);
        }
        if (who == 0 && i % 100 == 50) store.clear();
        if (i % 50 == 0) store.stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(store.flush(10));
  EXPECT_EQ(store.stats().damaged_total, 0);
  store.clear();
  EXPECT_EQ(store.stats().ram_pages, 0);
  EXPECT_THAT(test::page_files(own.path()), testing::IsEmpty());
}

}  // namespace
}  // namespace sluice::store
