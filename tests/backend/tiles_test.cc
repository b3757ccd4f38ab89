// Products on matrix tiles against the decoded weights, for every quantised type, panels at the end of their
// memory, one group and two; and against these those beside which weights are unpacked.
#include "backend/cpu/simd/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/packed.h"
#include "quant/types.h"

namespace sluice::backend::cpu {
namespace {

using quant::Type;

constexpr int64_t kColumns = 512;

class TilesTest : public testing::TestWithParam<Type> {};

/// 16 rows of random codes; the 16-bit scales of their blocks, at the given bytes, are small and finite.
std::vector<std::byte> random_rows(Type type, std::mt19937& random) {
  const quant::TypeInfo& info = quant::type_info(type);
  std::vector<std::byte> rows(static_cast<size_t>(kPanelRows * quant::bytes_of(info, kColumns)));
  for (std::byte& byte : rows) byte = static_cast<std::byte>(random() & 255u);
  std::vector<size_t> scales = {0};
  if (type == Type::Q6_K) scales = {208};
  if (type == Type::Q3_K) scales = {108};
  if (type == Type::Q2_K) scales = {80, 82};
  if (type == Type::Q4_1 || type == Type::Q5_1 || type == Type::Q4_K || type == Type::Q5_K) scales = {0, 2};
  for (size_t block = 0; block < rows.size(); block += static_cast<size_t>(info.bytes)) {
    if (type == Type::MXFP4) {
      rows[block] = static_cast<std::byte>(120 + random() % 8);
      continue;
    }
    for (const size_t at : scales)
      rows[block + at + 1] = (rows[block + at + 1] & std::byte{0x83}) | std::byte{0x28};
  }
  return rows;
}

TEST_P(TilesTest, AgreeWithDecodedWeights) {
  if (tile_kernels(best_isa()) == nullptr) GTEST_SKIP() << "this machine has no AMX";
  const Type type = GetParam();
  const quant::TypeInfo& info = quant::type_info(type);
  const TileKernels* tiles = tile_kernels(Isa::Amx);
  ASSERT_NE(tiles, nullptr);
  std::mt19937 random(7);
  const int64_t row_bytes = quant::bytes_of(info, kColumns);
  std::vector<float> weights[2];
  std::vector<uint16_t> unpacked[2];
  for (const int which : {0, 1}) {
    const std::vector<std::byte> rows = random_rows(type, random);
    std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type, kColumns)));
    pack_panel(type, rows.data(), row_bytes, kPanelRows, kColumns, panel.data());
    unpacked[which].resize(kColumns * kPanelRows);
    panel_unpack(unpack_kernels(Isa::Amx), type)(panel.data(), kColumns, unpacked[which].data(), {});
    weights[which].resize(kColumns * kPanelRows);
    for (int64_t r = 0; r < kPanelRows; ++r) {
      info.decode(rows.data() + r * row_bytes, weights[which].data() + r * kColumns, kColumns);
    }
  }
  // Two groups, the second one not full.
  constexpr int64_t kRows = kGroupRows + 5;
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kColumns);
  for (float& number : x) number = normal(random);
  std::vector<uint16_t> rounded[2];
  for (const int64_t group : {0, 1}) {
    const int64_t rows = std::min<int64_t>(kGroupRows, kRows - group * kGroupRows);
    const float* at[kGroupRows];
    for (int64_t i = 0; i < rows; ++i) at[i] = &x[(group * kGroupRows + i) * kColumns];
    rounded[group].resize(kGroupRows * kColumns);
    tiles->round(at, static_cast<int>(rows), kColumns, rounded[group].data());
  }
  const uint16_t* panels[2] = {unpacked[0].data(), unpacked[1].data()};
  alignas(64) float both[4][kTileFloats], alone[2][kTileFloats], turned[kTileFloats];
  tiles->begin();
  tiles->product(panels, rounded[0].data(), rounded[1].data(), kColumns, false, both[0]);
  // The columns in two stretches: the same sums, to the bit.
  constexpr int64_t kFirst = 256;
  tiles->product(panels, rounded[0].data(), nullptr, kFirst, false, alone[0]);
  const uint16_t* rest[2] = {panels[0] + kFirst * kPanelRows, panels[1] + kFirst * kPanelRows};
  tiles->product(rest, rounded[0].data() + kFirst * kGroupRows, nullptr, kColumns - kFirst, true, alone[0]);
  tiles->end();
  for (const int which : {0, 1}) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t group = i / kGroupRows;
      tiles->transpose(both[group * 2 + which], turned);
      for (int64_t r = 0; r < kPanelRows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < kColumns; ++c) {
          sum += static_cast<double>(x[i * kColumns + c]) *
                 static_cast<double>(weights[which][r * kColumns + c]);
        }
        const float got = turned[i % kGroupRows * kPanelRows + r];
        error += (sum - got) * (sum - got);
        norm += sum * sum;
        if (group == 0) {
          EXPECT_EQ(got, alone[which][r * kGroupRows + i]) << i << " " << r;
        }
      }
    }
    for (int64_t at = 0; at < kTileFloats; ++at) {  // the rows that are not there
      if (at % kGroupRows >= kRows - kGroupRows) {
        EXPECT_EQ(both[2 + which][at], 0.0f) << at;
      }
    }
    // Both factors are rounded to eight bits: each product is off by at most 2^-8, in both directions.
    EXPECT_LT(std::sqrt(error / norm), 1.0 / 256);
  }
}

// Whatever is around them: the sums of each group are those of products with unpacked panels, and what lies
// between the sums stays.
TEST_P(TilesTest, FewGroupsHaveTheSameSums) {
  if (tile_kernels(best_isa()) == nullptr) GTEST_SKIP() << "this machine has no AMX";
  const Type type = GetParam();
  const TileKernels* tiles = tile_kernels(Isa::Amx);
  std::mt19937 random(11);
  const std::vector<std::byte> file = random_rows(type, random);
  std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type, kColumns)));
  pack_panel(type, file.data(), quant::bytes_of(quant::type_info(type), kColumns), kPanelRows, kColumns,
             panel.data());
  std::vector<uint16_t> unpacked(kColumns * kPanelRows);
  panel_unpack(unpack_kernels(Isa::Amx), type)(panel.data(), kColumns, unpacked.data(), {});
  std::normal_distribution<float> normal;
  std::vector<float> x(kGroupRows * kColumns);
  std::vector<uint16_t> rounded(kFewGroups * kGroupRows * kColumns);
  for (int64_t group = 0; group < kFewGroups; ++group) {
    for (float& number : x) number = normal(random);
    const float* at[kGroupRows];
    for (int64_t i = 0; i < kGroupRows; ++i) at[i] = &x[i * kColumns];
    tiles->round(at, kGroupRows, kColumns, &rounded[group * kGroupRows * kColumns]);
  }
  alignas(64) static float expected[kFewGroups * 2 * kTileFloats], got[kFewGroups * 2 * kTileFloats];
  const uint16_t* panels[2] = {unpacked.data(), unpacked.data()};
  tiles->begin();
  for (int64_t group = 0; group < kFewGroups; ++group) {
    tiles->product(panels, &rounded[group * kGroupRows * kColumns], nullptr, kColumns, false,
                   expected + group * 2 * kTileFloats);
  }
  const TiledFew product = tiled_product(tiled_products(Isa::Amx), type).few;
  for (int groups = 1; groups <= kFewGroups; ++groups) {
    std::fill(std::begin(got), std::end(got), 7.0f);
    product(panel.data(), kColumns, {}, rounded.data(), groups, got);
    for (int at = 0; at < kFewGroups * 2 * kTileFloats; ++at) {
      const bool sum = at / kTileFloats % 2 == 0 && at / (2 * kTileFloats) < groups;
      ASSERT_EQ(got[at], sum ? expected[at] : 7.0f) << groups << " groups, " << at;
    }
  }
  tiles->end();
}

// Both halves of what stands beside: the sums of the product and the numbers of the blocks, wherever in a
// panel these begin.
TEST_P(TilesTest, UnpackBesideAProduct) {
  if (tile_kernels(best_isa()) == nullptr) GTEST_SKIP() << "this machine has no AMX";
  static_assert(kColumns == kTiledColumns);
  const Type type = GetParam();
  const TiledBeside beside = tiled_product(tiled_products(Isa::Amx), type).beside;
  if (beside == nullptr) return;  // its blocks are several groups
  const TileKernels* tiles = tile_kernels(Isa::Amx);
  std::mt19937 random(13);
  const std::vector<std::byte> file = random_rows(type, random);
  const quant::TypeInfo& info = quant::type_info(type);
  std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type, kColumns)));
  pack_panel(type, file.data(), quant::bytes_of(info, kColumns), kPanelRows, kColumns, panel.data());
  std::vector<uint16_t> unpacked(kColumns * kPanelRows), x(2 * kGroupRows * kColumns);
  panel_unpack(unpack_kernels(Isa::Amx), type)(panel.data(), kColumns, unpacked.data(), {});
  std::uniform_int_distribution<uint16_t> numbers(0x3F00, 0x3FFF);
  for (uint16_t& number : x) number = static_cast<uint16_t>(numbers(random) | (random() & 0x8000u));
  const uint16_t *panels[2] = {unpacked.data(), unpacked.data()}, *other = &x[kGroupRows * kColumns];
  alignas(64) static float expected[4 * kTileFloats], got[4 * kTileFloats];
  constexpr int64_t kBeside = kBesideGroups * kQuantColumns;
  tiles->begin();
  for (const bool more : {false, true}) {
    for (int64_t first = 0; first < kColumns; first += kBeside) {
      std::fill(std::begin(expected), std::end(expected), 2.0f);
      std::copy(std::begin(expected), std::end(expected), got);
      tiles->product(panels, x.data(), other, kColumns, more, expected);
      std::vector<uint16_t> out((kBeside + 32) * kPanelRows, 7);
      beside(panels, x.data(), other, more, got, &panel[panel_bytes(type, first)], {}, out.data());
      for (int i = 0; i < 4 * kTileFloats; ++i) ASSERT_EQ(got[i], expected[i]) << first << ", " << i;
      for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i)
        ASSERT_EQ(out[i], i < kBeside * kPanelRows ? unpacked[first * kPanelRows + i] : 7)
            << first << ", " << i;
    }
  }
  tiles->end();
}

// One step of columns, and as many as are unpacked ahead.
TEST(Tiles, FewColumns) {
  if (tile_kernels(best_isa()) == nullptr) GTEST_SKIP() << "this machine has no AMX";
  const TileKernels* tiles = tile_kernels(Isa::Amx);
  std::mt19937 random(5);
  const std::vector<std::byte> file = random_rows(Type::Q4_0, random);
  const int64_t row_bytes = quant::bytes_of(quant::type_info(Type::Q4_0), kColumns);
  for (const int64_t columns : {32, 64, 96}) {
    std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(Type::Q4_0, columns)));
    pack_panel(Type::Q4_0, file.data(), row_bytes, kPanelRows, columns, panel.data());
    std::vector<uint16_t> unpacked(static_cast<size_t>(columns * kPanelRows));
    panel_unpack(unpack_kernels(Isa::Amx), Type::Q4_0)(panel.data(), columns, unpacked.data(), {});
    std::vector<float> x(static_cast<size_t>(columns), 0.5f);
    std::vector<uint16_t> rounded(static_cast<size_t>(kGroupRows * columns));
    const float* at = x.data();
    tiles->round(&at, 1, columns, rounded.data());
    alignas(64) float expected[2 * kTileFloats], got[kTileFloats];
    const uint16_t* panels[2] = {unpacked.data(), unpacked.data()};
    tiles->begin();
    tiles->product(panels, rounded.data(), nullptr, columns, false, expected);
    tiled_product(tiled_products(Isa::Amx), Type::Q4_0)
        .few(panel.data(), columns, {}, rounded.data(), 1, got);
    tiles->end();
    for (int i = 0; i < kTileFloats; ++i) ASSERT_EQ(got[i], expected[i]) << columns << " columns, " << i;
  }
}

// A file of nothing but ones: scales are NaN with every bit set, and stay NaN.
TEST_P(TilesTest, KeepNaN) {
  const Type type = GetParam();
  const UnpackKernels* kernels = unpack_kernels(best_isa());
  if (kernels == nullptr) GTEST_SKIP() << "this machine has no AVX-512 with BF16 and VBMI";
  if (type == Type::MXFP4) GTEST_SKIP() << "its scales are powers of two, never NaN";
  const std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type, kColumns)), 0xFF);
  std::vector<uint16_t> unpacked(kColumns * kPanelRows);
  panel_unpack(kernels, type)(panel.data(), kColumns, unpacked.data(), {});
  for (size_t i = 0; i < unpacked.size(); ++i)
    ASSERT_GT(unpacked[i] & 0x7FFF, 0x7F80) << i << ": " << unpacked[i];
}

INSTANTIATE_TEST_SUITE_P(Types, TilesTest,
                         testing::Values(Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0,
                                         Type::IQ4_NL, Type::MXFP4, Type::Q2_K, Type::Q3_K, Type::Q4_K,
                                         Type::Q5_K, Type::Q6_K, Type::IQ4_XS),
                         [](const auto& param) { return std::string(quant::type_info(param.param).name); });

}  // namespace
}  // namespace sluice::backend::cpu
