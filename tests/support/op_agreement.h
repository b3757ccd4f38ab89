// Whether two backends agree on one op case, as far as the tested one's tolerance.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/op_case.h"

namespace sluice::test {

inline std::vector<float> run_and_peek(CaseRun& run, Executable& executable, TensorId id) {
  // Results start as NaN, so that an element nobody writes shows.
  std::vector<float> values(run.elements(id), std::numeric_limits<float>::quiet_NaN());
  if (run.program()[id].type != quant::Type::I32) executable.poke(id, run.rows_of(id), values);
  run.poke_inputs(executable);  // where an op runs as its expansion, its result may lie where an input was
  run.run(executable);
  executable.peek(id, run.rows_of(id), values);
  return values;
}

/// What a backend makes of a case: of each result its numbers.
inline std::vector<std::vector<float>> results_by(CaseRun& run, Backend& backend) {
  const auto executable = run.compile(backend);
  std::vector<std::vector<float>> results;
  for (const TensorId id : run.results()) results.push_back(run_and_peek(run, *executable, id));
  return results;
}

/// expected: results_by the judge.
inline void expect_agreement(CaseRun& run, const std::vector<std::vector<float>>& expected, Backend& tested) {
  const std::vector<TensorId> ids = run.results();
  const auto results = results_by(run, tested);
  for (size_t r = 0; r < ids.size(); ++r) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected[r].size(); ++i) {
      ASSERT_TRUE(std::isfinite(expected[r][i])) << run.program()[ids[r]].name << " element " << i;
      ASSERT_TRUE(std::isfinite(results[r][i])) << run.program()[ids[r]].name << " element " << i;
      const double of_judge = expected[r][i], off = expected[r][i] - results[r][i];
      error += off * off;
      norm += of_judge * of_judge;
    }
    ASSERT_GT(norm, 0) << "a result of zeros proves nothing";
    EXPECT_LE(std::sqrt(error / norm), tested.tolerance(run.program())) << run.program()[ids[r]].name;
  }
}
inline void expect_agreement(CaseRun& run, Backend& judge, Backend& tested) {
  expect_agreement(run, results_by(run, judge), tested);
}

}  // namespace sluice::test
