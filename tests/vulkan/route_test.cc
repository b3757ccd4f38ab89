// Experts are chosen by their probabilities, also where these are so far apart that some are below the normal
// numbers: to a device such are zero or not, and of zeros the first ones are chosen.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "support/op_case.h"
#include "support/vulkan.h"

namespace sluice::test {
namespace {

constexpr int64_t kRows = 70, kExperts = 64, kUsed = 6;

OpCase softmax_route() {
  return {"route", kRows, [](Builder& b) {
            Route route;
            route.gating = Gating::Softmax;
            route.logits.id = b.activation("logits", kStepRows, 1, kExperts);
            b.route(route, kUsed);
          }};
}

TensorId named(const Program& program, const std::string& name) {
  for (size_t i = 0; i < program.tensors().size(); ++i) {
    if (program.tensors()[i].name == name) return static_cast<TensorId>(i);
  }
  return kNoTensor;
}

TEST(VulkanRoute, ChoosesTheLikeliestWhereProbabilitiesAreNormalNumbers) {
  VULKAN_OR_SKIP(vulkan);
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 60);  // the sixth of 64 is often below 1e-38
  std::vector<float> logits(kRows * kExperts);
  for (float& logit : logits) logit = normal(random);
  CaseRun run(softmax_route(), 1);
  const auto executable = run.compile(vulkan);
  const auto& route = std::get<Route>(run.program().ops().front().args);
  executable->poke(named(run.program(), "logits"), kRows, logits);
  run_step(*executable, {.input = run.step()});
  std::vector<float> ids(kRows * kUsed);
  executable->peek(route.ids.id, kRows, ids);
  int normal_ones = 0, others = 0;
  for (size_t r = 0; r < kRows; ++r) {
    const float* row = logits.data() + r * kExperts;
    std::vector<int> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    for (size_t k = 0; k < kUsed; ++k) {
      const double probability = std::exp(double{row[order[k]]} - row[order[0]]);  // of nearly one
      if (probability < 2 * double{std::numeric_limits<float>::min()}) {
        ++others;
        continue;
      }
      ++normal_ones;
      EXPECT_EQ(static_cast<int>(ids[r * kUsed + k]), order[k]) << "row " << r << ", choice " << k;
    }
  }
  EXPECT_GT(normal_ones, 70);
  EXPECT_GT(others, 10);
}

}  // namespace
}  // namespace sluice::test
