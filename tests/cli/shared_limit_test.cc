// What a GPU and a CPU could do at most with a model that they share.
#include "cli/shared_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/model_shapes.h"
#include "program/offload.h"

namespace sluice::cli {
namespace {

class SharedLimitTest : public testing::Test {
 protected:
  SharedLimit limit(const SharedPeaks& measured, double hit_rate, program::StepShape shape = {}) const {
    return shared_limit(cut, shape, measured, hit_rate);
  }

  const ModelShapes shapes{"glm-4.7-flash", "q4_0"};
  const program::Program& whole = shapes.model().program;
  const program::Program cut = program::offload_experts(whole, program::routed_experts(whole).size());
  const SharedPeaks peaks{{.bytes_per_second = 400e9}, {.bytes_per_second = 50e9}, 0};
};

// Every byte is read once, wherever it is: in two memories of the same speed that take turns, as in one.
TEST_F(SharedLimitTest, HitsForAllAreOneDevice) {
  const double one = peaks.gpu.limit_seconds(program::total_cost(whole, {}));
  EXPECT_NEAR(limit(peaks, 1).seconds, one, 0.02 * one);
  EXPECT_EQ(limit(peaks, 1).cpu_seconds, 0);
}

TEST_F(SharedLimitTest, BothAreAtWorkAtOnce) {
  // A layer's selected experts: 4 of 2,048 x 1,536 x 3 numbers of 18 bytes in 32, in 46 layers.
  const double selected = 46 * 4 * 2048.0 * 1536 * 3 * 18 / 32 / 50e9;
  const SharedLimit none = limit(peaks, 0), half = limit(peaks, 0.5);
  EXPECT_NEAR(none.cpu_seconds, selected, 0.02 * selected);
  EXPECT_NEAR(half.cpu_seconds, 0.5 * none.cpu_seconds, 1e-9);
  for (const SharedLimit& one : {none, half}) {
    EXPECT_GT(one.seconds, std::max(one.cpu_seconds, one.gpu_seconds));
    EXPECT_LT(one.seconds, one.cpu_seconds + one.gpu_seconds);
  }
}

TEST_F(SharedLimitTest, ManyRowsStreamWhereThatIsSooner) {
  SharedPeaks linked{
      {.bytes_per_second = 400e9, .flops = 50e12}, {.bytes_per_second = 50e9, .flops = 1e12}, 25e9};
  const program::StepShape prompt{.rows = 512, .context = 256, .cache_rows = 512};
  EXPECT_FALSE(limit(linked, 0).streamed);  // one row: experts are read once, by the CPU twice as fast
  const SharedLimit many = limit(linked, 0, prompt);
  EXPECT_TRUE(many.streamed);
  EXPECT_DOUBLE_EQ(many.seconds, std::max(many.link_seconds, many.gpu_seconds));
  linked.link_bytes_per_second = 0;
  EXPECT_FALSE(limit(linked, 0, prompt).streamed);
}

TEST_F(SharedLimitTest, RoomIsCountedInExperts) {
  const int64_t gib = int64_t{1} << 30;
  EXPECT_LT(share_with_room(whole, 64, gib), 0);
  const double ten = share_with_room(whole, 64, 10 * gib), twelve = share_with_room(whole, 64, 12 * gib);
  int64_t experts = 0;
  for (const program::RoutedExperts& one : program::routed_experts(whole)) experts += one.bytes;
  EXPECT_NEAR(twelve - ten, 2.0 * static_cast<double>(gib) / static_cast<double>(experts), 1e-9);
  EXPECT_EQ(share_with_room(whole, 64, 40 * gib), 1);
  EXPECT_LT(share_with_room(whole, 100'000, 12 * gib), twelve);
}

TEST_F(SharedLimitTest, IsToldInWords) {
  EXPECT_THAT(shared_text(cut, peaks), testing::ContainsRegex("At most [0-9]+ tokens/s of one sequence"));
}

}  // namespace
}  // namespace sluice::cli
