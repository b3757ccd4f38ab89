// Whole models on a Vulkan device against logits that transformers computed, and against themselves: runs,
// rows, the way of copies.
#include <gtest/gtest.h>

#include "support/golden_cases.h"
#include "support/vulkan.h"

namespace sluice::test {
namespace {

/// Of each kind of model and cache one; SLUICE_TEST_VULKAN_ALL: all cases, for devices that are no processor.
std::vector<Case> cases() {
  std::vector<Case> list;
  const std::vector<std::string> some = {"glm-q4_k_m",    "lite-q4_k_m-yarn", "lite-legacy-kv_b", "v3-groups",
                                         "qwen3moe-q4_0", "gpt-oss-mxfp4",    "qwen3next-q4_k_m", "llama3"};
  for (const Case& c : kCases) {
    if (std::getenv("SLUICE_TEST_VULKAN_ALL") != nullptr ||
        std::find(some.begin(), some.end(), c.name) != some.end())
      list.push_back(c);
  }
  return list;
}

class VulkanGolden : public testing::TestWithParam<Case> {};

TEST_P(VulkanGolden, IsWithinTheLimitOfDivergence) {
  VULKAN_OR_SKIP(vulkan);
  const Golden golden = read_case(GetParam());
  for (const int rows : {7, 512}) {
    const Divergence kl = divergence(golden, logits_of(golden, vulkan, rows));
    EXPECT_LT(kl.best_90, GetParam().kl_limit) << rows;
    EXPECT_LT(kl.mean, 0.02) << rows;
  }
}

TEST_P(VulkanGolden, IsWithinTheSameLimitWithACacheOfEightBits) {
  VULKAN_OR_SKIP(vulkan);
  const Golden golden = read_case(GetParam());
  const Divergence kl = divergence(golden, logits_of(golden, vulkan, 64, quant::Type::Q8_0));
  EXPECT_LT(kl.best_90, GetParam().kl_limit);
  EXPECT_LT(kl.mean, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Cases, VulkanGolden, testing::ValuesIn(cases()), [](const auto& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// Steps of few rows where the text begins and where contexts are longest, and of many between: a processor
/// takes a quarter of a second for a step of few rows so deep.
TEST(VulkanRuns, GiveTheSameBitsEveryTimeAndHoweverBytesAreCopied) {
  VULKAN_OR_SKIP(vulkan);
  const Golden golden = golden_case("lite-q4_k_m-yarn");
  const model::Model model = model::Model::load(golden.model, quant::Type::F16);
  const int64_t deep = static_cast<int64_t>(golden.tokens.size()) - 56;
  const auto cut = [deep](int64_t begin) -> int64_t {
    return begin < 56 || begin >= deep ? 7 : std::min<int64_t>(64, deep - begin);
  };
  const auto logits_by = [&](program::Backend& backend) {
    return logits_in_steps(golden, model, backend, 64, cut);
  };
  const std::vector<float> first = logits_by(vulkan);
  EXPECT_EQ(logits_by(vulkan), first);
  std::string why;
  const auto staged = backend::make_vulkan_backend({.staged = true}, why);
  ASSERT_TRUE(staged) << why;
  EXPECT_EQ(logits_by(*staged), first);
}

TEST(VulkanRuns, GiveTheSameBitsHoweverTheStepsAreCutWhereBatchInvariant) {
  VULKAN_OR_SKIP(vulkan);
  const Golden golden = golden_case("glm-q4_k_m");
  const auto cut = [&](int rows) { return logits_of(golden, vulkan, rows, quant::Type::F16, true); };
  const std::vector<float> alone = cut(1);
  EXPECT_EQ(cut(7), alone);
  EXPECT_EQ(cut(64), alone);
}

/// Steps of few rows cut contexts into stretches: up to 8 are put together where they are multiplied, more by
/// a kernel of their own. All weights are floats: activations in eight bits would turn the last bits of sums
/// into steps.
TEST(VulkanRuns, ContextsInStretchesGiveWhatWholeOnesGive) {
  VULKAN_OR_SKIP(vulkan);
  Golden golden = read_golden(made_file("tests/golden/make.py", "glm-f16", "glm-f16.gguf"),
                              source_path("tests/golden/glm-mxfp4"));
  const std::vector<int32_t> once = golden.tokens;
  while (golden.tokens.size() < 640) golden.tokens.insert(golden.tokens.end(), once.begin(), once.end());
  golden.tokens.resize(640);
  golden.logits = logits_of(golden, vulkan, 64);
  const auto model = model::Model::load(golden.model, quant::Type::F16);
  const auto cut = [](int64_t begin) -> int64_t {  // positions 192 to 199 and 576 to 583 in few rows
    if (begin < 192) return std::min<int64_t>(64, 192 - begin);
    if (begin < 200) return begin < 195 ? 1 : 5;
    if (begin < 576) return std::min<int64_t>(64, 576 - begin);
    return begin < 584 ? 4 : 64;
  };
  EXPECT_LT(divergence(golden, logits_in_steps(golden, model, vulkan, 64, cut)).mean, 1e-9);
}

TEST(VulkanRuns, BundledModelAgreesWithTransformers) {
  VULKAN_OR_SKIP(vulkan);
  const Golden golden =
      read_golden(source_path("models/fairy-tales.gguf"), source_path("tests/model/fairy-tales"));
  EXPECT_LT(divergence(golden, logits_of(golden, vulkan, 512)).best_90, 2.2e-4);
}

TEST(VulkanPeaks, AreMeasuredOnce) {
  VULKAN_OR_SKIP(vulkan);
  const double measured = vulkan.peaks().bytes_per_second;
  EXPECT_GT(measured, 1e8);
  EXPECT_LT(measured, 1e14);
  EXPECT_EQ(vulkan.peaks().bytes_per_second, measured);
}

}  // namespace
}  // namespace sluice::test
