// The output matrix in steps of few rows: more outputs than a device's warps take at once, so that some take
// two tiles; rows of every bucket.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

/// Weights and activations are rounded to halves, once each: parts of 2^12 of a number, and sums of many.
constexpr double kTolerance = 0x1p-10;
constexpr int64_t kOutputs = 34'816, kColumns = 2048;

class CudaTallMatrix : public testing::TestWithParam<int64_t> {};

TEST_P(CudaTallMatrix, IsMultipliedAsTheReferenceDoes) {
  CUDA_OR_SKIP(cuda);
  CaseRun run({"output", GetParam(),
               [](Builder& b) {
                 b.norm_matmul(b.activation("x", kStepRows, 1, kColumns),
                               b.weight("norm", quant::Type::F32, 1, 1, kColumns), 1e-6f,
                               b.weight("output", quant::Type::Q6_K, 1, kOutputs, kColumns));
               }},
              3);
  const auto judge = run.compile(*backend::make_ref_backend()), tested = run.compile(cuda);
  const TensorId id = run.results().front();
  const auto expected = run_and_peek(run, *judge, id), actual = run_and_peek(run, *tested, id);
  for (int64_t r = 0; r < GetParam(); ++r) {
    double error = 0, norm = 0;
    for (auto i = static_cast<size_t>(r * kOutputs); i < static_cast<size_t>((r + 1) * kOutputs); ++i) {
      error += std::pow(expected[i] - actual[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_GT(norm, 0);
    EXPECT_LE(std::sqrt(error / norm), kTolerance) << "row " << r;
  }
  // The same bits again: no sum depends on which copy comes first.
  EXPECT_EQ(run_and_peek(run, *tested, id), actual);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaTallMatrix, testing::Values(2, 5, 8, 9, 16, 17, 32, 33),
                         [](const auto& rows) { return fmt::format("rows_{}", rows.param); });

}  // namespace
}  // namespace sluice::test
