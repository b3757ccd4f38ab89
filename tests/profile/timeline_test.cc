// Clock readings taken apart into ops and gaps, and counted experts.
#include "profile/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "profile/statistics.h"

namespace sluice::profile {
namespace {

using testing::ElementsAre;

TEST(Timeline, OpsAndGapsAddUpToTheStep) {
  program::StepTimes times;
  times.begin_ns = 1000;
  times.end_ns = 1200;
  times.workers = 2;
  times.parts = {{1010, 1050}, {1050, 1080}, {1105, 1150},   // worker 0
                 {1020, 1060}, {1060, 1100}, {1102, 1180}};  // worker 1
  const StepParts parts = take_apart(times, 3);
  // Worker 1 always ends last. The second op begins when the first ends; before the third stood a barrier.
  EXPECT_THAT(parts.op_ns, ElementsAre(40, 40, 78));
  EXPECT_THAT(parts.gap_ns, ElementsAre(20, 0, 2, 20));
  const int64_t sum = std::accumulate(parts.op_ns.begin(), parts.op_ns.end(), int64_t{0}) +
                      std::accumulate(parts.gap_ns.begin(), parts.gap_ns.end(), int64_t{0});
  EXPECT_EQ(sum, 200);
  // Waited: 10 + 25 and 20 + 2, on average 28, of which 22 are gaps.
  EXPECT_EQ(parts.wait_ns, 6);
}

TEST(Timeline, AWorkerAloneHasNoWaits) {
  program::StepTimes times;
  times.begin_ns = 0;
  times.end_ns = 35;
  times.workers = 1;
  times.parts = {{0, 10}, {10, 30}, {7, 7}, {7, 7}};  // room for a second worker that had no part
  const StepParts parts = take_apart(times, 2);
  EXPECT_THAT(parts.op_ns, ElementsAre(10, 20));
  EXPECT_THAT(parts.gap_ns, ElementsAre(0, 0, 5));
  EXPECT_EQ(parts.wait_ns, 0);
}

TEST(Statistics, OfKnownSamples) {
  EXPECT_DOUBLE_EQ(mean({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(deviation({2, 4, 4, 4, 5, 5, 7, 9}), 2.1380899352993952);
  EXPECT_DOUBLE_EQ(median({5, 1, 3}), 3);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
  EXPECT_DOUBLE_EQ(noise_of_median({7}), 0);
  EXPECT_DOUBLE_EQ(noise_of_median({3, 3, 3, 100}), 0);  // one outlier moves nothing
  EXPECT_DOUBLE_EQ(noise_of_mean({7}), 0);
  EXPECT_DOUBLE_EQ(noise_of_mean({3, 3, 3}), 0);
  EXPECT_DOUBLE_EQ(noise_of_mean({3, 3, 3, 100}), 48.5);  // and moves the mean by half of that
}

}  // namespace
}  // namespace sluice::profile
