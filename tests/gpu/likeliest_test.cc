// The likeliest tokens that the CUDA backend finds, against sorting the rows: ordinary ones, ties, numbers
// that cannot be drawn, more columns than there are groups, and rows that leave no room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/cuda.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Rows of numbers whose sum with zero is the output: add(x, zeros).
OpCase sum_of(int64_t rows, int64_t columns) {
  return {"sum", rows, [columns](Builder& b) {
            const TensorId x = b.activation("x", kStepRows, 1, columns);
            Add op{{x}, {b.activation("zeros", kStepRows, 1, columns)}, {}};
            op.out.id = b.activation("out", kStepRows, 1, columns);
            b.emit(op);
          }};
}

std::vector<Likely> sorted(std::span<const float> row) {
  std::vector<Likely> all;
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] > -kInf) all.push_back({row[i], static_cast<int32_t>(i)});
  std::sort(all.begin(), all.end(), [](const Likely& a, const Likely& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  all.resize(kLikeliest, Likely{-kInf, -1});
  return all;
}

void expect_found(program::Backend& backend, const std::vector<float>& rows, int64_t columns) {
  const auto count = static_cast<int64_t>(rows.size()) / columns;
  CaseRun run(sum_of(count, columns), 1);
  const auto executable = run.compile(backend);
  ASSERT_TRUE(executable->finds_likeliest());
  TensorId x = kNoTensor, zeros = kNoTensor;
  for (size_t i = 0; i < run.program().tensors().size(); ++i) {
    if (run.program().tensors()[i].name == "x") x = static_cast<TensorId>(i);
    if (run.program().tensors()[i].name == "zeros") zeros = static_cast<TensorId>(i);
  }
  executable->poke(x, count, rows);
  executable->poke(zeros, count, std::vector<float>(rows.size(), 0.0f));
  std::vector<Likely> found(static_cast<size_t>(count * kLikeliest));
  StepOutput output{{}, found};
  executable->run(run.step(), output);
  // The logits have stayed: of the last row, and of the first and the last.
  ASSERT_TRUE(executable->keeps_logits());
  for (const std::vector<int32_t>& some :
       {std::vector<int32_t>{static_cast<int32_t>(count - 1)}, {0, static_cast<int32_t>(count - 1)}}) {
    std::vector<float> logits(some.size() * static_cast<size_t>(columns));
    executable->fetch_logits(some, logits);
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t at = static_cast<size_t>(some[i / static_cast<size_t>(columns)] * columns) +
                        i % static_cast<size_t>(columns);
      ASSERT_TRUE(logits[i] == rows[at] || (std::isnan(logits[i]) && std::isnan(rows[at]))) << i;
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const auto expected =
        sorted(std::span(rows).subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns)));
    for (size_t i = 0; i < expected.size(); ++i) {
      const Likely& seen = found[static_cast<size_t>(r * kLikeliest) + i];
      ASSERT_EQ(seen.token, expected[i].token) << "row " << r << ", place " << i;
      ASSERT_EQ(seen.logit, expected[i].logit) << "row " << r << ", place " << i;
    }
  }
}

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

}  // namespace
}  // namespace sluice::test
