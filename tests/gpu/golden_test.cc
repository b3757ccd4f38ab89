// Whole models on the CUDA backend against logits that transformers computed, and against themselves: runs,
// rows, neighbours.
#include <gtest/gtest.h>

#include "support/cuda.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

class CudaGolden : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(CudaGolden, IsWithinTheLimitOfDivergence) {
  CUDA_OR_SKIP(cuda);
  const auto& [golden_case, rows] = GetParam();
  const Golden golden = read_case(golden_case);
  const Divergence kl = divergence(golden, logits_of(golden, cuda, rows));
  EXPECT_LT(kl.best_90, golden_case.kl_limit);
  EXPECT_LT(kl.mean, 0.02);
}

TEST_P(CudaGolden, IsWithinTheSameLimitWithACacheOfEightBits) {
  CUDA_OR_SKIP(cuda);
  const auto& [golden_case, rows] = GetParam();
  const Golden golden = read_case(golden_case);
  const Divergence kl = divergence(golden, logits_of(golden, cuda, rows, quant::Type::Q8_0));
  EXPECT_LT(kl.best_90, golden_case.kl_limit);
  EXPECT_LT(kl.mean, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaGolden,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(1, 2, 7, 512)),
                         [](const auto& param) {
                           std::string name = fmt::format("{}_rows_{}", std::get<0>(param.param).name,
                                                          std::get<1>(param.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CudaRuns, GiveTheSameBitsEveryTime) {
  CUDA_OR_SKIP(cuda);
  for (const char* name : {"glm-q4_k_m", "lite-q4_k_m-yarn"}) {
    const Golden golden = golden_case(name);
    for (const int rows : {1, 7, 512})
      EXPECT_EQ(logits_of(golden, cuda, rows), logits_of(golden, cuda, rows)) << name;
    EXPECT_EQ(logits_of(golden, cuda, 7, quant::Type::Q8_0), logits_of(golden, cuda, 7, quant::Type::Q8_0))
        << name;
  }
}

TEST(CudaRuns, BundledModelAgreesWithTransformers) {
  CUDA_OR_SKIP(cuda);
  const Golden golden =
      read_golden(source_path("models/fairy-tales.gguf"), source_path("tests/model/fairy-tales"));
  for (const int rows : {1, 7, 512})
    EXPECT_LT(divergence(golden, logits_of(golden, cuda, rows)).best_90, 2.2e-4) << rows;
}

}  // namespace
}  // namespace sluice::test
