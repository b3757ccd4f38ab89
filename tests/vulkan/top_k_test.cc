// The likeliest tokens that the Vulkan backend finds, against sorting the rows: ordinary ones, ties, numbers
// that cannot be drawn, and all sizes that take another round of sorting.
#include "support/top_k.h"

#include <random>

#include "program/derived.h"
#include "support/vulkan.h"

namespace sluice::test {
namespace {

TEST(VulkanTopK, AreThoseOfASort) {
  VULKAN_OR_SKIP(vulkan);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  for (const int64_t columns : {5, 64, 1024, 1025, 16'384, 16'385, 154'880, 262'145}) {
    SCOPED_TRACE(columns);
    std::vector<float> rows(static_cast<size_t>(2 * columns));
    for (float& number : rows) number = normal(random);
    for (size_t i = 0; i < static_cast<size_t>(columns); ++i) rows[i] = std::round(rows[i]);  // ties
    expect_found(vulkan, rows, columns);
  }
}

/// Numbers below the normal ones are left out: to a device they may be zero.
TEST(VulkanTopK, HoldWhereRowsAreStrange) {
  VULKAN_OR_SKIP(vulkan);
  constexpr int64_t kColumns = 5'000;
  std::vector<float> rows;
  const auto add = [&](auto number_at) {
    for (int64_t i = 0; i < kColumns; ++i) rows.push_back(number_at(i));
  };
  add([](int64_t) { return 1.5f; });
  add([](int64_t) { return -kInf; });
  add([](int64_t) { return kNan; });
  add([](int64_t i) { return i % 500 == 0 ? -3.0f : -kInf; });
  add([](int64_t i) { return i == 4'999 ? kInf : i % 7 == 0 ? kNan : 0.0f; });
  add([](int64_t) { return -std::numeric_limits<float>::max(); });
  add([](int64_t i) { return static_cast<float>(i); });
  add([](int64_t i) { return static_cast<float>(-i); });
  expect_found(vulkan, rows, kColumns);
}

/// Of more outputs than the device sorts the host is given the logits.
TEST(VulkanTopK, OfManyOutputsFollowFromTheirLogits) {
  VULKAN_OR_SKIP(vulkan);
  constexpr int64_t kRows = 65, kColumns = 100;
  std::vector<float> rows(kRows * kColumns);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 37 % 101);
  CaseRun run(sum_of(kRows, kColumns), 1);
  const auto executable = run.compile(vulkan);
  poke_sum(*executable, run.program(), rows);
  const std::vector<Want> wants(kRows, {.logits = false, .top = true});
  program::Derived derived;
  const Step step{.input = run.step(), .wants = wants};
  const StepResult result = derived.complete(step, run_step(*executable, step));
  for (int64_t r = 0; r < kRows; ++r) {
    const auto expected =
        sorted(std::span(rows).subspan(static_cast<size_t>(r * kColumns), static_cast<size_t>(kColumns)));
    const RowResult& row = result.outputs[static_cast<size_t>(r)];
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(row.top[i].token, expected[i].token) << r << " " << i;
  }
}

}  // namespace
}  // namespace sluice::test
