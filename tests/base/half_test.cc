// Half floats against the definition, over every bit pattern.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice {
namespace {

/// binary16 by its definition: (-1)^s 2^(e-15) (1 + m/1024), subnormals 2^-14 m/1024.
double f16_by_definition(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, F16DecodesEveryPattern) {
  for (int i = 0; i < 65536; ++i) {
    const double expected = f16_by_definition(static_cast<uint16_t>(i));
    const float got = f16_to_f32(static_cast<uint16_t>(i));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << i;
    } else {
      EXPECT_EQ(got, static_cast<float>(expected)) << i;
    }
  }
}

TEST(Half, F16RoundTripsEveryPatternThatIsNoNan) {
  for (int i = 0; i < 65536; ++i) {
    const float value = f16_to_f32(static_cast<uint16_t>(i));
    if (!std::isnan(value)) {
      EXPECT_EQ(f32_to_f16(value), i);
    }
  }
}

TEST(Half, F16RoundsToNearestEven) {
  for (int i = 0; i < 0x7BFF; ++i) {  // every pair of neighbouring finite values
    const double low = f16_by_definition(static_cast<uint16_t>(i));
    const double high = f16_by_definition(static_cast<uint16_t>(i + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: one more bit than binary16
    EXPECT_EQ(f32_to_f16(middle), i + (i & 1)) << i;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), i) << i;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), i + 1) << i;
  }
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
}

TEST(Half, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

}  // namespace
}  // namespace sluice
