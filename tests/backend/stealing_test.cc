// Work stealing: every item is taken once, whoever comes when.
#include "backend/cpu/stealing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "backend/cpu/multiply.h"

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
          const PanelWork work(panels, {{taken.data(), 1, workers}, worker, workers});
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
  const PanelWork work(10, {{}, 1, 2});
  int64_t rounds = 0;
  work.each(2, 2, [&](int64_t round, Slice some) {
    EXPECT_EQ(round, rounds++);
    EXPECT_EQ(some.first, 5);
    EXPECT_EQ(some.last, 10);
  });
  EXPECT_EQ(rounds, 2);
}

TEST(Stealing, WhatWasTakenInAnotherStepCountsForNothing) {
  Taken taken;
  for (const uint32_t step : {1u, 2u, 0xFFFFFFu, 0x1000000u}) {
    int64_t items = 0;
    for (Slice s = taken.take(step, 100, 1, true); s.first < s.last; s = taken.take(step, 100, 1, items % 2))
      items += s.last - s.first;
    EXPECT_EQ(items, 100) << "step " << step;
  }
  EXPECT_EQ(taken.next(7), 0);
  EXPECT_EQ(taken.next(7), 1);
  EXPECT_EQ(taken.next(8), 0);
}

TEST(Stealing, ALeastIsTakenTogether) {
  Taken taken;
  std::vector<int64_t> pieces;
  for (Slice s = taken.take(1, 40, 8, true); s.first < s.last; s = taken.take(1, 40, 8, true))
    pieces.push_back(s.last - s.first);
  EXPECT_EQ(pieces, (std::vector<int64_t>{10, 8, 8, 8, 6}));
}

TEST(Stealing, AStretchTooLongToDealOutIsItsOwnersAlone) {
  std::vector<Taken> taken(2);
  constexpr int64_t kItems = Taken::kMost + 1;
  for (const int worker : {0, 1}) {
    std::vector<int> owners;
    const Stealing stealing{{taken.data(), 1, 2}, worker, 2};
    stealing.each(
        1, [&](int owner) { return owner == 0 ? kItems : 0; },
        [&](int owner, Slice all) {
          owners.push_back(owner);
          EXPECT_EQ(all.last - all.first, kItems);
        });
    EXPECT_EQ(owners, worker == 0 ? std::vector<int>{0} : std::vector<int>{});
  }
}

TEST(Stealing, EveryPanelOfManyMatricesIsTakenOnce) {
  const std::vector<MatrixWork> matrices = {{96, 512, true}, {96, 40, false}, {96, 0, false},
                                            {7, 1, false},   {1, 100, false}, {96, 3, false}};
  for (const int workers : {1, 2, 3, 64}) {
    for (const bool steals : {false, true}) {
      for (const int64_t least : {1, 16}) {
        std::vector<Taken> taken(static_cast<size_t>(workers));
        std::vector<std::vector<int>> times;
        times.reserve(matrices.size());
        for (const MatrixWork& m : matrices) times.emplace_back(static_cast<size_t>(m.panels), 0);
        for (int worker = workers - 1; worker >= 0; --worker) {
          const Stealing stealing{{steals ? taken.data() : nullptr, 1, 2}, worker, workers};
          each_share(
              stealing, std::ssize(matrices), least, [&](int64_t m) { return matrices[size_t(m)]; },
              [&](int64_t m, Slice some) {
                for (int64_t p = some.first; p < some.last; ++p) ++times[size_t(m)][size_t(p)];
              });
        }
        for (size_t m = 0; m < matrices.size(); ++m) {
          for (const int count : times[m])
            ASSERT_EQ(count, matrices[m].rows > 0) << "matrix " << m << ", " << workers << " workers";
        }
      }
    }
  }
}

TEST(Stealing, AWorkerThatNeverComesHoldsNothingUp) {
  constexpr int kWorkers = 4, kThreads = 3;
  constexpr int64_t kPanels = 4000;
  std::vector<Taken> taken(kWorkers);
  std::vector<std::atomic<int>> times(kPanels);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int worker = 0; worker < kThreads; ++worker) {
    threads.emplace_back([&, worker] {
      const PanelWork work(kPanels, {{taken.data(), 1, kWorkers}, worker, kWorkers});
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
