// The team: everybody enters, barriers order what stands before and behind them, sleepers wake. And how work
// is parted.
#include "base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice {
namespace {

TEST(Team, EveryWorkerEntersOncePerRun) {
  for (const int size : {1, 2, 5}) {
    Team team(size);
    EXPECT_EQ(team.size(), size);
    std::vector<int> entered(static_cast<size_t>(size), 0);
    for (int round = 0; round < 200; ++round)
      team.run([&](int worker) { ++entered[static_cast<size_t>(worker)]; });
    EXPECT_EQ(entered, std::vector<int>(static_cast<size_t>(size), 200));
  }
  EXPECT_EQ(Team(0).size(), 1);
}

TEST(Team, ABarrierStandsBetweenWhatIsWrittenAndWhatIsRead) {
  constexpr int kSize = 4, kRounds = 300;
  Team team(kSize);
  std::vector<int> written(kSize, 0), wrong(kSize, 0);
  team.run([&](int worker) {
    for (int round = 1; round <= kRounds; ++round) {
      written[static_cast<size_t>(worker)] = round;
      team.barrier();
      for (const int value : written) wrong[static_cast<size_t>(worker)] += value != round;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(kSize, 0));
}

TEST(Team, WorkersThatFellAsleepWakeUp) {
  Team team(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than they spin
    std::atomic<int> entered = 0;
    team.run([&](int worker) {
      if (worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      team.barrier();
      ++entered;
    });
    EXPECT_EQ(entered, 3);
  }
}

TEST(Team, AsManyWorkersAsCpusHaveOneEachAndTheCallerStaysFree) {
#if defined(SLUICE_PLAIN_BASE)
  GTEST_SKIP() << "skipped: affinity: the plain base leaves threads where the system wants them";
#endif
  cpu_set_t before, after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const int cpus = CPU_COUNT(&before);
  Team team(cpus);
  std::vector<int> allowed(static_cast<size_t>(cpus), 0), cpu(static_cast<size_t>(cpus), -1);
  team.run([&](int worker) {
    cpu_set_t mine;
    ::sched_getaffinity(0, sizeof mine, &mine);
    allowed[static_cast<size_t>(worker)] = CPU_COUNT(&mine);
    cpu[static_cast<size_t>(worker)] = ::sched_getcpu();
  });
  EXPECT_EQ(allowed[0], cpus);
  for (size_t i = 1; i < allowed.size(); ++i) EXPECT_EQ(allowed[i], 1) << "worker " << i;
  std::sort(cpu.begin() + 1, cpu.end());
  EXPECT_EQ(std::adjacent_find(cpu.begin() + 1, cpu.end()), cpu.end()) << "two workers on one CPU";
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Slices, CoverEverythingOnceInOrder) {
  for (const int64_t count : {0, 1, 15, 16, 17, 100, 1536, 154880}) {
    for (const int workers : {1, 2, 3, 64, 192}) {
      for (const int64_t group : {1, 4, 16}) {
        int64_t next = 0;
        for (int w = 0; w < workers; ++w) {
          const Slice slice = slice_of(count, w, workers, group);
          ASSERT_EQ(slice.first, next);
          ASSERT_LE(slice.first, slice.last);
          ASSERT_TRUE(slice.last % group == 0 || slice.last == count);
          next = slice.last;
        }
        ASSERT_EQ(next, count) << count << " of " << group << " on " << workers;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
