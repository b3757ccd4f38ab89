// What is kept of constraints between requests: with constraints that only count.
#include "server/constraint_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"

namespace sluice::server {
namespace {

/// Takes tokens up to a number.
class Counting : public text::TokenConstraint {
 public:
  explicit Counting(int most) : most_(most) {}
  bool allowed(std::span<uint32_t>) override { return false; }
  bool accept(int32_t) override { return at_ < most_ && ++at_ > 0; }
  bool may_end() const override { return at_ == most_; }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Counting>(*this); }

 private:
  int most_, at_ = 0;
};

TEST(ConstraintCache, MakesOnceAndCopies) {
  ConstraintCache cache;
  int made = 0;
  const auto get = [&](const std::string& key) {
    return cache.get(key, [&] { return ++made, std::make_unique<Counting>(std::stoi(key)); });
  };
  const auto first = get("1");
  EXPECT_TRUE(first->accept(0));
  EXPECT_TRUE(first->may_end());
  const auto second = get("1");
  EXPECT_EQ(made, 1);
  EXPECT_FALSE(second->may_end()) << "it begins anew";
  EXPECT_TRUE(second->accept(0));
  const auto other = get("2");
  EXPECT_EQ(made, 2);
  other->accept(0);
  EXPECT_TRUE(other->accept(0));
}

TEST(ConstraintCache, KeepsFewAndTheLastUsed) {
  ConstraintCache cache;
  int made = 0;
  const auto get = [&](const std::string& key) {
    cache.get(key, [&] { return ++made, std::make_unique<Counting>(1); });
  };
  for (size_t i = 0; i < ConstraintCache::kMostEntries; ++i) get(std::to_string(i));
  get("0");
  get("new");  // in place of "1"
  made = 0;
  get("0");
  EXPECT_EQ(made, 0);
  get("1");
  EXPECT_EQ(made, 1);
  const std::string huge(ConstraintCache::kMostKeyBytes + 1, 'x');
  get(huge);
  get(huge);
  EXPECT_EQ(made, 3) << "not kept";
}

TEST(ConstraintCache, WhatCannotBeMadeIsNotKept) {
  ConstraintCache cache;
  EXPECT_THROW(cache.get("x", []() -> std::unique_ptr<text::TokenConstraint> { fail("no"); }), Error);
  EXPECT_TRUE(cache.get("x", [] { return std::make_unique<Counting>(0); })->may_end());
}

TEST(ConstraintCache, ManyThreads) {
  ConstraintCache cache;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const int most = i % 20;
        const auto got = cache.get(std::to_string(most), [&] { return std::make_unique<Counting>(most); });
        for (int n = 0; n < most; ++n) wrong += !got->accept(0);
        wrong += !got->may_end();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace sluice::server
