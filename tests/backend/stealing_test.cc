// Work stealing: every item is taken once, whoever comes when.
#include "backend/cpu/stealing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sluice::backend::cpu {
namespace {

TEST(Stealing, EveryPanelGoesThroughEveryRoundOnce) {
  for (const int workers : {1, 2, 3, 64, 192}) {
    for (const int64_t panels : {1, 7, 96, 385}) {
      for (const int64_t together : {1, 2}) {
        constexpr int64_t kRounds = 3;
        std::vector<Taken> taken(static_cast<size_t>(workers));
        std::vector<int> times(static_cast<size_t>(kRounds * panels), 0);
        // One after the other, the last first: what the first find is left for nobody.
        for (int worker = workers - 1; worker >= 0; --worker) {
          const PanelWork work(panels, {taken.data(), worker, workers});
          work.each(kRounds, together, [&](int64_t round, Slice some) {
            for (int64_t p = some.first; p < some.last; ++p) ++times[static_cast<size_t>(round * panels + p)];
          });
        }
        for (const int count : times) ASSERT_EQ(count, 1) << panels << " panels, " << workers << " workers";
      }
    }
  }
}

TEST(Stealing, WithoutItEachKeepsToItsOwn) {
  const PanelWork work(10, {nullptr, 1, 2});
  int64_t rounds = 0;
  work.each(2, 2, [&](int64_t round, Slice some) {
    EXPECT_EQ(round, rounds++);
    EXPECT_EQ(some.first, 5);
    EXPECT_EQ(some.last, 10);
  });
  EXPECT_EQ(rounds, 2);
}

TEST(Stealing, AWorkerThatNeverComesHoldsNothingUp) {
  constexpr int kWorkers = 4, kThreads = 3;
  constexpr int64_t kPanels = 4000;
  std::vector<Taken> taken(kWorkers);
  std::vector<std::atomic<int>> times(kPanels);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kThreads; ++worker) {
    threads.emplace_back([&, worker] {
      const PanelWork work(kPanels, {taken.data(), worker, kWorkers});
      work.each(1, 1, [&](int64_t, Slice some) {
        for (int64_t p = some.first; p < some.last; ++p) ++times[static_cast<size_t>(p)];
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : times) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace sluice::backend::cpu
