// What follows from logits: the likeliest tokens, draws, drafts that are right. Against sorting, and against
// the definition of a draw in other words (support/exact_draw.h).
#include "program/derived.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "support/exact_draw.h"

namespace sluice::program {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr auto kTop = static_cast<size_t>(kMaxTopK);

std::vector<Likely> sorted(std::span<const float> row) {
  std::vector<Likely> all;
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] > -kInf) all.push_back({row[i], static_cast<int32_t>(i)});
  std::ranges::stable_sort(all, std::ranges::greater(), &Likely::logit);
  all.resize(kTop, {-kInf, -1});
  return all;
}

void expect_top(std::span<const float> row) {
  std::vector<Likely> found(kTop, {7, 7});
  find_top(row, found);
  const std::vector<Likely> expected = sorted(row);
  for (size_t i = 0; i < kTop; ++i) {
    ASSERT_EQ(found[i].token, expected[i].token) << i;
    ASSERT_EQ(found[i].logit, expected[i].logit) << i;
  }
}

TEST(Derived, FindsWhatSortingFinds) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  for (const size_t columns : {1u, 63u, 64u, 65u, 5000u}) {
    std::vector<float> row(columns);
    for (float& number : row) number = normal(random);
    expect_top(row);
    for (float& number : row) number = std::round(number);  // ties
    expect_top(row);
    for (float& number : row) number = random() % 3 == 0 ? -kInf : random() % 3 == 0 ? NAN : number;
    expect_top(row);
    expect_top(std::vector<float>(columns, 1.5f));
    expect_top(std::vector<float>(columns, NAN));
  }
}

TEST(Derived, DrawsByTheDefinition) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 3);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> row(3000);
  std::vector<Likely> top(kTop);
  int near = 0;
  for (int round = 0; round < 3000; ++round) {
    for (float& number : row) number = normal(random);
    if (round % 5 == 0) std::fill(row.begin() + 20, row.end(), -kInf);
    find_top(row, top);
    const Draw draw{.top_k = 1 + static_cast<int32_t>(random() % 64),
                    .top_p = random() % 4 == 0 ? 1 : uniform(random),
                    .min_p = random() % 2 == 0 ? 0 : 0.2f * uniform(random),
                    .temperature = random() % 8 == 0 ? 0 : 0.05f + 2 * uniform(random),
                    .uniform = std::min(uniform(random), std::nextafter(1.0f, 0.0f))};
    const test::ExactDraw exact = test::draw_exactly(top, draw);
    near += exact.margin < 1e-6;
    if (exact.margin >= 1e-6) {
      ASSERT_EQ(drawn_from(top, draw), exact.token) << round;
    }
  }
  EXPECT_LT(near, 10);
  find_top(std::vector<float>(9, NAN), top);
  EXPECT_EQ(drawn_from(top, {.top_k = 40, .temperature = 1}), 0) << "there is nothing to draw from";
}

/// Logits of outputs that are sure of these tokens.
std::vector<RowResult> sure_of(const std::vector<int32_t>& tokens, std::vector<float>& logits) {
  constexpr size_t kTokens = 100;
  logits.assign(tokens.size() * kTokens, 0.0f);
  std::vector<RowResult> rows(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    logits[i * kTokens + static_cast<size_t>(tokens[i])] = 9;
    rows[i].logits = std::span(logits).subspan(i * kTokens, kTokens);
  }
  return rows;
}

TEST(Derived, CountsTheDraftsThatAreRight) {
  // Two answers, the first with three drafts and the second with one; the first has a row of its prompt.
  const std::vector<int32_t> tokens = {5, 10, 11, 12, 13, 20, 21}, output_rows = {1, 2, 3, 4, 5, 6};
  std::vector<Want> wants(6);
  wants[0].drafts = 3, wants[4].drafts = 1;
  const Step step{.input = {.tokens = tokens, .output_rows = output_rows}, .wants = wants};
  std::vector<float> logits;
  Derived derived;
  const auto accepted = [&](const std::vector<int32_t>& said) {
    const std::vector<RowResult> rows = sure_of(said, logits);
    const StepResult result = derived.complete(step, {.outputs = rows});
    std::vector<int32_t> out;
    for (const size_t i : {0u, 4u}) {
      const int32_t count = result.outputs[i].accepted;
      out.insert(out.end(), {count, result.outputs[i + static_cast<size_t>(count)].drawn});
    }
    EXPECT_EQ(result.outputs[1].accepted, -1) << "nobody asked";
    return out;
  };
  EXPECT_THAT(accepted({11, 12, 13, 14, 21, 22}), testing::ElementsAre(3, 14, 1, 22));
  EXPECT_THAT(accepted({11, 12, 99, 14, 7, 22}), testing::ElementsAre(2, 99, 0, 7));
  EXPECT_THAT(accepted({12, 12, 13, 14, 21, 21}), testing::ElementsAre(0, 12, 1, 21))
      << "one is wrong, and all behind it";
}

TEST(Derived, LeavesWhatWasGivenAndWhatNobodyWants) {
  const std::vector<int32_t> rows = {0, 1};
  const Want wants[] = {{}, {.logits = false, .top = true, .drawn = true}};
  std::vector<float> logits;
  std::vector<RowResult> given = sure_of({3, 4}, logits);
  given[1].drawn = 77;  // as rounding made it
  Derived derived;
  const StepResult result =
      derived.complete({.input = {.tokens = rows, .output_rows = rows}, .wants = wants}, {.outputs = given});
  EXPECT_TRUE(result.outputs[0].top.empty());
  EXPECT_EQ(result.outputs[0].drawn, -1);
  EXPECT_EQ(result.outputs[1].top[0].token, 4);
  EXPECT_EQ(result.outputs[1].drawn, 77);
  EXPECT_TRUE(derived.complete({}, {.stopped = true}).stopped);
  EXPECT_TRUE(derived.complete({}, {.paused = true}).paused);
}

}  // namespace
}  // namespace sluice::program
