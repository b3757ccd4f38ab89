// Activations as products take them: 32 numbers under one scale, at every tier.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/simd/matmul.h"
#include "support/isas.h"

namespace sluice::backend::cpu {
namespace {

class QuantizeTest : public testing::TestWithParam<Isa> {
 protected:
  static std::vector<QuantBlock> quantize(const std::vector<float>& x) {
    std::vector<QuantBlock> blocks(x.size() / kQuantColumns);
    matmul_kernels(GetParam()).quantize(x.data(), static_cast<int64_t>(x.size()), blocks.data());
    return blocks;
  }
};

TEST_P(QuantizeTest, IsWithinHalfAStepAndSumsItsCodes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(512);
  for (float& value : x) value = normal(random);
  for (size_t i = 3; i < x.size(); i += 128) x[i] *= 1000;  // some channels are far outliers
  const auto blocks = quantize(x);
  for (size_t b = 0; b < blocks.size(); ++b) {
    float largest = 0;
    int32_t sums[2] = {0, 0};
    for (size_t i = 0; i < kQuantColumns; ++i) {
      const float value = x[b * kQuantColumns + i];
      largest = std::max(largest, std::fabs(value));
      EXPECT_LE(std::fabs(value - blocks[b].scale * blocks[b].codes[i]), 0.501f * blocks[b].scale);
      sums[i / 16] += blocks[b].codes[i];
    }
    EXPECT_FLOAT_EQ(blocks[b].scale, largest / 127);
    // What sums begin with goes on from nothing, or from the bits of 1.5 * 2^23 where sums are floats.
    const int32_t bits = std::bit_cast<int32_t>(0x1.8p23f);
    const int32_t nothing = blocks[b].starts[0] > bits / 2 ? bits : 0;
    for (const int h : {0, 1}) {
      EXPECT_EQ(blocks[b].half_starts[h], nothing - 32 * sums[h]);
      EXPECT_FLOAT_EQ(blocks[b].scaled_sums[h], blocks[b].scale * static_cast<float>(sums[h]));
    }
    EXPECT_EQ(blocks[b].starts[0], nothing - 8 * (sums[0] + sums[1]));
    EXPECT_EQ(blocks[b].starts[1], nothing - 128 * (sums[0] + sums[1]));
    EXPECT_FLOAT_EQ(blocks[b].scaled_sum, blocks[b].scale * static_cast<float>(sums[0] + sums[1]));
  }
}

TEST_P(QuantizeTest, ZeroesAndTheSmallestNumbersAreZero) {
  for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min()}) {
    const auto blocks = quantize(std::vector<float>(kQuantColumns, value));
    for (const int8_t code : blocks[0].codes) EXPECT_EQ(code, 0);
    EXPECT_EQ(blocks[0].scaled_sum, 0.0f);
  }
}

TEST_P(QuantizeTest, InfinitiesAndNaNStayVisibleInTheirBlockAlone) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{13}, size_t{31}}) {
      std::vector<float> x(static_cast<size_t>(2 * kQuantColumns), 1.0f);
      x[at] = bad;
      const auto blocks = quantize(x);
      EXPECT_TRUE(std::isnan(blocks[0].scale)) << bad << " at " << at;
      for (const int8_t code : blocks[0].codes)
        EXPECT_NE(code, -128);  // codes stay within what kernels add up
      EXPECT_FLOAT_EQ(blocks[1].scale, 1.0f / 127);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, QuantizeTest, testing::ValuesIn(test::usable_isas()),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace sluice::backend::cpu
