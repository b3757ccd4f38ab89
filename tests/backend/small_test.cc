// The small kernels of every tier against the C library, and routing of rows that are not numbers.
#include "backend/cpu/simd/small.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "base/half.h"
#include "program/builder.h"
#include "support/isas.h"

namespace sluice::backend::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SmallTest : public testing::TestWithParam<Isa> {
 protected:
  const SmallKernels& kernels() const { return small_kernels(GetParam()); }
};

TEST_P(SmallTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (int i = -235135; i <= 237837; ++i) x.push_back(static_cast<float>(i) * 0.00037f);
  for (const float small : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-8f, -1e-8f}) x.push_back(small);
  std::vector<float> y(x.size());
  kernels().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const auto rounded = static_cast<float>(exact);
    const double unit =
        static_cast<double>(std::nextafter(rounded, kInfinity)) - static_cast<double>(rounded);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / unit);
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("exp_worst_units", std::to_string(worst));
}

TEST_P(SmallTest, ExpEndsAreFiniteAndNanStays) {
  const float x[] = {-kInfinity, -1000, -88, 89, 1000, kInfinity, kNan};
  float y[7];
  kernels().exp(x, 7, y);
  for (int i = 0; i < 3; ++i) EXPECT_LT(y[i], 2e-38f);
  for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isfinite(y[i]) && y[i] > 1e38f);
  EXPECT_TRUE(std::isnan(y[6]));
}

TEST_P(SmallTest, AnglesAreAsExactAsFloats) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponent(-7, 0);
  for (const double position : {0.0, 1.0, 17.0, 4095.0, 131071.0, 1048575.0}) {
    std::vector<double> frequencies{1.0};
    for (int i = 0; i < 200; ++i) frequencies.push_back(std::pow(10.0, exponent(random)));
    std::vector<float> cosine(frequencies.size()), sine(frequencies.size());
    kernels().angles(position, frequencies.data(), static_cast<int64_t>(frequencies.size()), cosine.data(),
                     sine.data());
    for (size_t i = 0; i < frequencies.size(); ++i) {
      EXPECT_NEAR(cosine[i], std::cos(position * frequencies[i]), 0x1p-24) << position * frequencies[i];
      EXPECT_NEAR(sine[i], std::sin(position * frequencies[i]), 0x1p-24) << position * frequencies[i];
    }
  }
}

TEST_P(SmallTest, HalvesAreTheScalarConversions) {
  std::vector<float> x{0.0f,     -0.0f,    1e-8f, 6e-8f,     -5.9e-8f,  65504.0f,
                       65519.9f, 65520.0f, -1e9f, kInfinity, -kInfinity};
  std::mt19937 random(9);
  std::uniform_real_distribution<float> exponent(-26, 17);
  for (int i = 0; i < 20000; ++i) x.push_back(std::exp2(exponent(random)) * (i % 2 == 0 ? 1.0f : -1.0f));
  for (const size_t count : {x.size(), size_t{1}, size_t{15}, size_t{17}}) {
    std::vector<uint16_t> halves(count + 1, 0xABCD);
    kernels().to_f16(x.data(), static_cast<int64_t>(count), halves.data());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(halves[i], f32_to_f16(x[i])) << x[i];
    EXPECT_EQ(halves[count], 0xABCD) << "written past the end";
  }
  uint16_t half = 0;
  kernels().to_f16(&kNan, 1, &half);
  EXPECT_TRUE(std::isnan(f16_to_f32(half)));
}

TEST_P(SmallTest, SoftmaxAndSigmoidOfAnyCount) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 5);
  for (const int64_t count : {1, 7, 16, 64, 100}) {
    std::vector<float> x(static_cast<size_t>(count)), y(x.size() + 1, 42.0f);
    for (float& value : x) value = normal(random);
    kernels().sigmoid(x.data(), count, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], 1 / (1 + std::exp(-x[i])), 2e-7);
    kernels().softmax(x.data(), count, y.data());
    double sum = 0;
    for (const float value : x) sum += std::exp(static_cast<double>(value));
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], std::exp(static_cast<double>(x[i])) / sum, 4e-7);
    EXPECT_EQ(y.back(), 42.0f) << "written past the end";
  }
}

TEST_P(SmallTest, SoftplusIsWithinAFewUnitsInTheLastPlace) {
  std::vector<float> x;
  for (int i = -120000; i <= 140000; ++i) x.push_back(static_cast<float>(i) * 0.00071f);
  for (const float more : {0.0f, -0.0f, 1e-30f, -1e-8f, 1e30f}) x.push_back(more);
  std::vector<float> y(x.size());
  kernels().softplus(x.data(), std::ssize(x), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<double>(x[i]);
    const double exact = std::max(at, 0.0) + std::log1p(std::exp(-std::abs(at)));
    ASSERT_NEAR(static_cast<double>(y[i]), exact, 4e-7 * exact) << at;
  }
  const float ends[] = {-kInfinity, kInfinity, kNan};
  float z[3];
  kernels().softplus(ends, 3, z);
  EXPECT_LT(z[0], 2e-38f);
  EXPECT_EQ(z[1], kInfinity);
  EXPECT_TRUE(std::isnan(z[2]));
}

TEST_P(SmallTest, DotOfAnyCount) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t count : {1, 7, 16, 31, 32, 41, 128, 300}) {
    std::vector<float> x(static_cast<size_t>(count)), y(x.size());
    double exact = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(random), y[i] = normal(random);
      exact += static_cast<double>(x[i]) * static_cast<double>(y[i]);
      size += std::abs(static_cast<double>(x[i]) * static_cast<double>(y[i]));
    }
    EXPECT_NEAR(static_cast<double>(kernels().dot(x.data(), y.data(), count)), exact, 1e-6 * size) << count;
  }
}

TEST_P(SmallTest, RouteGivesDistinctExpertsToRowsThatAreNotNumbers) {
  constexpr int64_t kExperts = 16, kUsed = 4;
  for (const auto gating : {program::Gating::Sigmoid, program::Gating::Softmax}) {
    for (const int groups : {1, 4}) {
      program::Program program;
      program::Builder b(program);
      program::Route route{.gating = gating, .normalize = true};
      route.groups = groups;
      route.groups_used = groups == 1 ? 1 : 2;
      route.logits.id = b.activation("logits", program::kStepRows, 1, kExperts);
      b.route(route, kUsed);
      const auto& op = std::get<program::Route>(program.ops().back().args);
      program.set_output(op.weights.id);
      const auto executable =
          make_cpu_backend({.threads = 1, .isa = GetParam()})
              ->compile(program, program::WeightBytes(program.tensors().size()), {4, 4, 1});
      std::vector<float> logits(4 * kExperts, kNan);            // a row of NaN,
      std::fill_n(&logits[kExperts], kExperts, -kInfinity);     // of minus infinities,
      std::fill_n(&logits[2 * kExperts], kExperts, kInfinity);  // of infinities,
      for (size_t i = 0; i < kExperts; i += 2)
        logits[3 * kExperts + i] = static_cast<float>(i);  // and a mixed one
      executable->poke(route.logits.id, 4, logits);
      const std::vector<int32_t> zeroes(4, 0), rows{0, 1, 2, 3};
      run_step(*executable, {.input = {zeroes, rows, zeroes, rows, zeroes, 1, {}}});
      std::vector<float> ids(4 * kUsed);
      executable->peek(op.ids.id, 4, ids);
      for (size_t r = 0; r < 4; ++r) {
        const std::set<float> chosen(ids.begin() + static_cast<std::ptrdiff_t>(r * kUsed),
                                     ids.begin() + static_cast<std::ptrdiff_t>((r + 1) * kUsed));
        EXPECT_EQ(chosen.size(), kUsed) << "row " << r;
        EXPECT_GE(*chosen.begin(), 0);
        EXPECT_LT(*chosen.rbegin(), kExperts);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, SmallTest, testing::ValuesIn(test::usable_isas()),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace sluice::backend::cpu
