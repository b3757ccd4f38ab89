// Rows of a cache: how long they are, and what eight bits keep of their numbers, against arithmetic in
// double.
#include "quant/cache_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/half.h"

namespace sluice::quant {
namespace {

constexpr CacheRow kLatent{Type::Q8_0, 576, 64};

struct Row {
  std::vector<std::byte> bytes;
  std::vector<float> numbers;  ///< what decoding gives
};

/// A row between bytes that nobody may touch.
Row through(const CacheRow& format, const std::vector<float>& in) {
  constexpr size_t kGuard = 32;
  const auto size = static_cast<size_t>(format.bytes());
  std::vector<std::byte> room(size + 2 * kGuard, std::byte{0xA5});
  format.encode(in.data(), room.data() + kGuard);
  for (size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(room[i], std::byte{0xA5});
    EXPECT_EQ(room[kGuard + size + i], std::byte{0xA5});
  }
  Row row{{room.begin() + kGuard, room.end() - kGuard}, std::vector<float>(in.size(), NAN)};
  format.decode(row.bytes.data(), row.numbers.data());
  return row;
}

float half_at(const Row& row, int64_t at) {
  uint16_t half;
  std::memcpy(&half, row.bytes.data() + at, sizeof half);
  return f16_to_f32(half);
}

std::vector<float> random_numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = normal(random) * std::exp2(normal(random));
  return numbers;
}

TEST(CacheRow, BytesAreThoseOfTheDocumentation) {
  EXPECT_EQ((CacheRow{Type::F16, 576, 64}).bytes(), 1152);
  EXPECT_EQ((CacheRow{Type::F32, 576, 64}).bytes(), 2304);
  EXPECT_EQ(kLatent.bytes(), 512 + 128 + 32);
  EXPECT_EQ(kLatent.exact_at(), 512);
  EXPECT_EQ(kLatent.scales_at(), 640);
  EXPECT_EQ((CacheRow{Type::Q8_0, 2048, 0}).bytes(), 2048 + 128);
  EXPECT_EQ((CacheRow{Type::Q8_0, 33, 0}).bytes(), 48 + 16);
  EXPECT_TRUE(is_cache_type(Type::Q8_0));
  EXPECT_FALSE(is_cache_type(Type::Q4_0));
}

TEST(CacheRow, EveryNumberIsWithinHalfAStepAndTheLastOnesAreHalves) {
  for (const CacheRow& format : {kLatent, CacheRow{Type::Q8_0, 160, 32}, CacheRow{Type::Q8_0, 70, 7},
                                 CacheRow{Type::Q8_0, 33, 0}, CacheRow{Type::Q8_0, 5, 5}}) {
    const std::vector<float> in = random_numbers(format.columns, static_cast<uint64_t>(format.columns));
    const Row row = through(format, in);
    EXPECT_EQ(format.bytes() % 16, 0);
    for (int64_t c = 0; c < format.columns; ++c) {
      const auto i = static_cast<size_t>(c);
      if (c >= format.coded()) {
        EXPECT_EQ(row.numbers[i], f16_to_f32(f32_to_f16(in[i])));
        continue;
      }
      const double step = static_cast<double>(half_at(row, format.scales_at() + c / kCacheRun * 2));
      double largest = 0;
      for (int64_t k = c / kCacheRun * kCacheRun;
           k < std::min((c / kCacheRun + 1) * kCacheRun, format.coded()); ++k) {
        largest = std::max(largest, std::abs(static_cast<double>(in[static_cast<size_t>(k)])));
      }
      // The least binary16 that is not below: within 2^-10 of it.
      EXPECT_GE(step, largest / 127 * (1 - 0x1p-24));
      EXPECT_LE(step, largest / 127 * (1 + 0x1p-10) + 0x1p-24);
      EXPECT_LE(std::abs(static_cast<double>(row.numbers[i]) - static_cast<double>(in[i])),
                step / 2 * (1 + 1e-5))
          << c;
      EXPECT_EQ(row.numbers[i],
                static_cast<float>(step) * static_cast<float>(static_cast<int8_t>(row.bytes[i])));
    }
  }
}

TEST(CacheRow, WhatEightBitsHoldComesBackAsItWas) {
  std::vector<float> in(576);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = 0x1p-5f * static_cast<float>(static_cast<int>(i * 37 % 255) - 127);
  for (size_t i = 0; i < in.size(); i += 32) in[i] = -127 * 0x1p-5f;
  EXPECT_EQ(through(kLatent, in).numbers, in);
}

TEST(CacheRow, ZeroesSmallAndImpossibleNumbers) {
  EXPECT_EQ(through(kLatent, std::vector<float>(576, 0.0f)).numbers, std::vector<float>(576, 0.0f));
  // Below what the smallest scale holds: zero or one step of it.
  for (const float x : through(kLatent, std::vector<float>(576, 1e-9f)).numbers)
    EXPECT_LE(std::abs(x), 0x1p-24f);
  // A scale of few bits is rounded up: nothing is cut off.
  const std::vector<float> few(576, 127 * 1.4f * 0x1p-24f);
  for (const float x : through(kLatent, few).numbers) EXPECT_NEAR(x, few[0], 0x1p-24f);
  std::vector<float> wild(576, 1.0f);
  wild[3] = std::numeric_limits<float>::quiet_NaN();
  wild[40] = std::numeric_limits<float>::infinity();
  wild[70] = 3e38f;
  const Row row = through(kLatent, wild);
  EXPECT_NEAR(row.numbers[100], 1, 0.005);  // runs of sane numbers are not touched
}

}  // namespace
}  // namespace sluice::quant
