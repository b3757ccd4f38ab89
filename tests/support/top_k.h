// The likeliest tokens that a backend's executables find, against sorting the rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "support/op_case.h"

namespace sluice::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Rows of numbers whose sum with zero is the output: add(x, zeros).
inline OpCase sum_of(int64_t rows, int64_t columns) {
  return {"sum", rows, [columns](Builder& b) {
            const TensorId x = b.activation("x", kStepRows, 1, columns);
            Add op{{x}, {b.activation("zeros", kStepRows, 1, columns)}, {}};
            op.out.id = b.activation("out", kStepRows, 1, columns);
            b.emit(op);
          }};
}

inline std::vector<Likely> sorted(std::span<const float> row) {
  std::vector<Likely> all;
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] > -kInf) all.push_back({row[i], static_cast<int32_t>(i)});
  std::sort(all.begin(), all.end(), [](const Likely& a, const Likely& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  all.resize(kMaxTopK, Likely{-kInf, -1});
  return all;
}

/// Makes `rows` what the sum gives.
inline void poke_sum(program::Executable& executable, const Program& program,
                     const std::vector<float>& rows) {
  const auto columns = program[program.output()].columns();
  const auto count = static_cast<int64_t>(rows.size()) / columns;
  for (size_t i = 0; i < program.tensors().size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (program[id].name == "x") executable.poke(id, count, rows);
    if (program[id].name == "zeros") executable.poke(id, count, std::vector<float>(rows.size(), 0.0f));
  }
}

inline void expect_found(program::Backend& backend, const std::vector<float>& rows, int64_t columns) {
  const auto count = static_cast<int64_t>(rows.size()) / columns;
  CaseRun run(sum_of(count, columns), 1);
  const auto executable = run.compile(backend);
  poke_sum(*executable, run.program(), rows);
  // With the logits of none, of the last row, and of the first and the last.
  std::vector<Likely> found;
  for (const std::set<int64_t>& whole : {std::set<int64_t>{}, {count - 1}, {0, count - 1}}) {
    std::vector<Want> wants;
    for (int64_t r = 0; r < count; ++r) wants.push_back({.logits = whole.contains(r), .top = true});
    const StepResult result = run_step(*executable, {.input = run.step(), .wants = wants});
    ASSERT_EQ(std::ssize(result.outputs), count);
    if (whole.size() < static_cast<size_t>(count)) found.clear();
    for (int64_t r = 0; r < count; ++r) {
      const RowResult& row = result.outputs[static_cast<size_t>(r)];
      if (whole.size() < static_cast<size_t>(count))
        found.insert(found.end(), row.top.begin(), row.top.end());
      if (!whole.contains(r)) continue;
      ASSERT_EQ(std::ssize(row.logits), columns);
      for (size_t i = 0; i < row.logits.size(); ++i) {
        const float expected = rows[static_cast<size_t>(r * columns) + i];
        ASSERT_TRUE(row.logits[i] == expected || (std::isnan(row.logits[i]) && std::isnan(expected))) << i;
      }
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const auto expected =
        sorted(std::span(rows).subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns)));
    for (size_t i = 0; i < expected.size(); ++i) {
      const Likely& seen = found[static_cast<size_t>(r * kMaxTopK) + i];
      ASSERT_EQ(seen.token, expected[i].token) << "row " << r << ", place " << i;
      ASSERT_EQ(seen.logit, expected[i].logit) << "row " << r << ", place " << i;
    }
  }
}

}  // namespace sluice::test
