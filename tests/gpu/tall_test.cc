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

struct Tall {
  quant::Type type;
  int64_t rows;
};
class CudaTallMatrix : public testing::TestWithParam<Tall> {};

TEST_P(CudaTallMatrix, IsMultipliedAsTheReferenceDoes) {
  CUDA_OR_SKIP(cuda);
  const auto [type, rows] = GetParam();
  CaseRun run({"output", rows,
               [type = type](Builder& b) {
                 b.norm_matmul(b.activation("x", kStepRows, 1, kColumns),
                               b.weight("norm", quant::Type::F32, 1, 1, kColumns), 1e-6f,
                               b.weight("output", type, 1, kOutputs, kColumns));
               }},
              3);
  const auto judge = run.compile(*backend::make_ref_backend()), tested = run.compile(cuda);
  const TensorId id = run.results().front();
  const auto expected = run_and_peek(run, *judge, id), actual = run_and_peek(run, *tested, id);
  // Of Q6_K rows are rounded to halves, of the other types of few rows to eight bits.
  const double tolerance = type == quant::Type::Q6_K ? kTolerance : cuda.tolerance(run.program());
  for (int64_t r = 0; r < rows; ++r) {
    double error = 0, norm = 0;
    for (auto i = static_cast<size_t>(r * kOutputs); i < static_cast<size_t>((r + 1) * kOutputs); ++i) {
      error += std::pow(expected[i] - actual[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_GT(norm, 0);
    EXPECT_LE(std::sqrt(error / norm), tolerance) << "row " << r;
  }
  // The same bits again: no sum depends on which copy comes first.
  EXPECT_EQ(run_and_peek(run, *tested, id), actual);
}

using quant::Type;
INSTANTIATE_TEST_SUITE_P(Rows, CudaTallMatrix,
                         testing::Values(Tall{Type::Q6_K, 2}, Tall{Type::Q6_K, 5}, Tall{Type::Q6_K, 8},
                                         Tall{Type::Q6_K, 9}, Tall{Type::Q6_K, 16}, Tall{Type::Q6_K, 17},
                                         Tall{Type::Q6_K, 32}, Tall{Type::Q6_K, 33}, Tall{Type::Q4_0, 5},
                                         Tall{Type::Q4_K, 2}, Tall{Type::Q4_K, 8}, Tall{Type::Q8_0, 8}),
                         [](const auto& tall) {
                           return fmt::format("{}_rows_{}", quant::type_info(tall.param.type).name,
                                              tall.param.rows);
                         });

}  // namespace
}  // namespace sluice::test
