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

inline void expect_agreement(CaseRun& run, Backend& judge, Backend& tested) {
  const auto expected_by = run.compile(judge), actual_by = run.compile(tested);
  for (const TensorId id : run.results()) {
    const auto expected = run_and_peek(run, *expected_by, id), actual = run_and_peek(run, *actual_by, id);
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::isfinite(expected[i])) << run.program()[id].name << " element " << i;
      ASSERT_TRUE(std::isfinite(actual[i])) << run.program()[id].name << " element " << i;
      error += std::pow(expected[i] - actual[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_GT(norm, 0) << "a result of zeros proves nothing";
    EXPECT_LE(std::sqrt(error / norm), tested.tolerance(run.program())) << run.program()[id].name;
  }
}

}  // namespace sluice::test
