// The likeliest tokens that the CUDA backend finds, against sorting the rows: ordinary ones, ties, numbers
// that cannot be drawn, more columns than there are groups, and rows that leave no room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/cuda.h"
#include "support/exact_draw.h"
#include "support/top_k.h"

namespace sluice::test {
namespace {

TEST(CudaLikeliest, AreThoseOfASort) {
  CUDA_OR_SKIP(cuda);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  for (const int64_t columns : {5, 64, 257, 2048, 2049, 50'000, 154'880, 262'145}) {
    SCOPED_TRACE(columns);
    std::vector<float> rows(static_cast<size_t>(3 * columns));
    for (float& number : rows) number = normal(random);
    for (size_t i = 0; i < static_cast<size_t>(columns); ++i) rows[i] = std::round(rows[i]);  // ties
    expect_found(cuda, rows, columns);
  }
}

TEST(CudaLikeliest, HoldWhereRowsAreStrange) {
  CUDA_OR_SKIP(cuda);
  constexpr int64_t kColumns = 20'000;
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> rows;
  const auto add = [&](auto number_at) {
    for (int64_t i = 0; i < kColumns; ++i) rows.push_back(number_at(i));
  };
  add([](int64_t) { return 1.5f; });
  add([](int64_t) { return -kInf; });
  add([](int64_t) { return kNan; });
  add([](int64_t i) { return i % 500 == 0 ? -3.0f : -kInf; });
  add([](int64_t i) { return i == 19'999 ? kInf : i % 7 == 0 ? kNan : 0.0f; });
  add([](int64_t i) { return -std::numeric_limits<float>::max() + static_cast<float>(i % 3); });
  add([](int64_t i) { return static_cast<float>(i); });
  add([](int64_t i) { return static_cast<float>(-i); });
  add([&](int64_t) { return 1e-40f * normal(random); });
  expect_found(cuda, rows, kColumns);
}

TEST(CudaLikeliest, AreDrawnFromByTheDefinition) {
  CUDA_OR_SKIP(cuda);
  constexpr int64_t kRows = 64, kColumns = 3'000;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> rows(kRows * kColumns);
  for (float& number : rows) number = normal(random);
  CaseRun run(sum_of(kRows, kColumns), 1);
  const auto executable = run.compile(cuda);
  ASSERT_TRUE(executable->facts().drawn);
  poke_sum(*executable, run.program(), rows);
  int near = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<Want> wants(kRows, {.logits = false, .top = true, .drawn = true});
    for (Want& want : wants) {
      want.draw = {.top_k = 1 + static_cast<int32_t>(random() % 64),
                   .top_p = random() % 4 == 0 ? 1 : uniform(random),
                   .min_p = random() % 2 == 0 ? 0 : 0.2f * uniform(random),
                   .temperature = random() % 8 == 0 ? 0 : 0.05f + 2 * uniform(random),
                   .uniform = std::min(uniform(random), std::nextafter(1.0f, 0.0f))};
    }
    const StepResult result = run_step(*executable, {.input = run.step(), .wants = wants});
    for (int64_t r = 0; r < kRows; ++r) {
      const auto at = static_cast<size_t>(r);
      const ExactDraw exact = draw_exactly(result.outputs[at].top, wants[at].draw);
      near += exact.margin < 1e-5;
      if (exact.margin >= 1e-5) {
        EXPECT_EQ(result.outputs[at].drawn, exact.token) << "row " << r << ", round " << round;
      }
    }
  }
  EXPECT_LT(near, 40) << "of " << 40 * kRows << " draws";
}

TEST(CudaLikeliest, OfStrangeRowsAreDrawnFromToo) {
  CUDA_OR_SKIP(cuda);
  constexpr int64_t kColumns = 500;
  std::vector<float> rows(5 * kColumns, kNan);
  rows[kColumns + 17] = -3;                                             // one token alone
  rows[2 * kColumns + 40] = rows[2 * kColumns + 400] = kInf;            // two that beat all
  for (size_t i = 0; i < kColumns; ++i) rows[3 * kColumns + i] = 1.5f;  // all the same
  for (size_t i = 0; i < kColumns; ++i)
    rows[4 * kColumns + i] = -1e30f * float(i);  // differences without end
  CaseRun run(sum_of(5, kColumns), 1);
  const auto executable = run.compile(cuda);
  poke_sum(*executable, run.program(), rows);
  const std::vector<Want> wants(
      5, {.logits = false,
          .drawn = true,
          .draw = {.top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .temperature = 0.7f, .uniform = 0.75f}});
  std::vector<int32_t> drawn;
  for (const RowResult& row : run_step(*executable, {.input = run.step(), .wants = wants}).outputs)
    drawn.push_back(row.drawn);
  // Of 40 equal ones the first 36 reach nine tenths.
  EXPECT_EQ(drawn, (std::vector<int32_t>{0, 17, 400, 27, 0}));
}

}  // namespace
}  // namespace sluice::test
