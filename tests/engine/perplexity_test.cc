// Windows, running means and divergences against their definitions.
#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sluice::engine {
namespace {

TEST(Perplexity, WindowsPredictEveryTokenOnceAndStayInside) {
  for (int64_t tokens = 0; tokens < 40; ++tokens) {
    for (int64_t length = 2; length < 12; ++length) {
      for (int64_t stride = 1; stride <= length; ++stride) {
        std::vector<int> scored(static_cast<size_t>(tokens), 0);
        for (const Window& w : windows_of(tokens, length, stride)) {
          ASSERT_TRUE(w.begin >= 0 && w.begin < w.first_scored && w.first_scored < w.end && w.end <= tokens);
          ASSERT_LE(w.end - w.begin, length);
          for (int64_t t = w.first_scored; t < w.end; ++t) ++scored[static_cast<size_t>(t)];
        }
        for (int64_t t = 0; t < tokens; ++t) {
          // Only a token that begins a window, with nothing of the window before in it, has no context.
          const bool alone = t == 0 || (stride == length && t % length == 0);
          ASSERT_EQ(scored[static_cast<size_t>(t)], alone ? 0 : 1)
              << tokens << " " << length << " " << stride << " " << t;
        }
      }
    }
  }
}

TEST(Perplexity, MeanAndStandardErrorAreTheDefinitions) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(1e6, 2);  // far from zero: a naive sum of squares would lose it
  std::vector<double> values(1000);
  Mean mean;
  double sum = 0, squares = 0;
  for (double& value : values) mean.add(value = normal(random)), sum += value;
  for (const double value : values) squares += std::pow(value - sum / 1000, 2);
  EXPECT_NEAR(mean.mean(), sum / 1000, 1e-6);
  EXPECT_NEAR(mean.standard_error(), std::sqrt(squares / 999 / 1000), 1e-9);
  EXPECT_EQ(Mean().standard_error(), 0);
}

TEST(Perplexity, LogSumExpDoesNotOverflow) {
  EXPECT_NEAR(log_sum_exp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0), 1e-9);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-1000, -1001}), -1000 + std::log1p(std::exp(-1.0)), 1e-9);
}

TEST(Perplexity, DivergencesFollowTheDefinition) {
  const std::vector<float> p = {0, 1, 2, -1}, q = {0.5f, 1, 1.5f, -2};
  const std::vector<double> p_wide(p.begin(), p.end()), q_wide(q.begin(), q.end());
  double p_total = 0, q_total = 0, kl = 0;
  for (const double x : p_wide) p_total += std::exp(x);
  for (const double x : q_wide) q_total += std::exp(x);
  for (size_t i = 0; i < 4; ++i) {
    const double share = std::exp(p_wide[i]) / p_total, other = std::exp(q_wide[i]) / q_total;
    kl += share * std::log(share / other);
  }
  Divergences d;
  for (int i = 0; i < 99; ++i) d.add(p, p);
  d.add(p, std::vector<float>{2, 1, 0, -1});
  EXPECT_NEAR(d.quantile(0.99), 0, 1e-12);
  EXPECT_GT(d.largest(), 0.1);
  EXPECT_DOUBLE_EQ(d.same_top(), 0.99);
  EXPECT_NEAR(d.mean().mean(), d.largest() / 100, 1e-12);
  Divergences one;
  one.add(p, q);
  EXPECT_NEAR(one.mean().mean(), kl, 1e-12);
  // A logit of minus infinity in the reference adds nothing; NaN shows as the largest.
  const float inf = std::numeric_limits<float>::infinity();
  Divergences odd;
  odd.add(std::vector<float>{0, -inf}, std::vector<float>{0, -inf});
  EXPECT_EQ(odd.largest(), 0);
  odd.add(std::vector<float>{0, NAN}, std::vector<float>{0, 1});
  EXPECT_TRUE(std::isnan(odd.largest()));
}

}  // namespace
}  // namespace sluice::engine
