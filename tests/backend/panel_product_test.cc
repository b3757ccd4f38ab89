// The products of every tier, type and number of rows, against the file's own numbers in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "backend/cpu/packed.h"
#include "support/isas.h"
#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

struct Param {
  Isa isa;
  quant::Type type;
};

class PanelProductTest : public testing::TestWithParam<Param> {};

TEST_P(PanelProductTest, IsTheProductOfTheFilesNumbers) {
  const auto [isa, type_id] = GetParam();
  const quant::TypeInfo& type = quant::type_info(type_id);
  constexpr int64_t kColumns = 512;
  const int64_t row_bytes = quant::bytes_of(type, kColumns);
  std::mt19937_64 random(5);
  std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
  test::random_weights(type, file, random);
  std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type_id, kColumns)));
  pack_panel(type_id, file.data(), row_bytes, kPanelRows, kColumns, panel.data());
  std::vector<float> weights(kPanelRows * kColumns), x(kTileRows * kColumns);
  for (int64_t r = 0; r < kPanelRows; ++r)
    type.decode(file.data() + r * row_bytes, &weights[r * kColumns], kColumns);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);

  const MatmulKernels& kernels = matmul_kernels(isa);
  constexpr int64_t kBlocks = kColumns / kQuantColumns;
  std::vector<QuantBlock> blocks(kTileRows * kBlocks);
  kernels.quantize(x.data(), kTileRows * kColumns, blocks.data());
  const bool quantized = takes_quantized(type_id);
  const void* rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i) {
    rows[i] = quantized ? static_cast<const void*>(&blocks[i * kBlocks]) : &x[i * kColumns];
    for (int64_t c = 0; quantized && c < kColumns; ++c) {
      const QuantBlock& block = blocks[i * kBlocks + c / kQuantColumns];
      x[i * kColumns + c] = block.scale * static_cast<float>(block.codes[c % kQuantColumns]);
    }
  }
  std::vector<float> one_by_one;
  for (int count = 1; count <= kTileRows; ++count) {
    std::vector<float> out(static_cast<size_t>(count) * kPanelRows + 1, NAN);
    product_of(kernels, type_id).panel(panel.data(), kColumns, rows, count, out.data(), {0, 0});
    EXPECT_TRUE(std::isnan(out.back())) << "written past the end";
    out.pop_back();
    for (int i = 0; i < count; ++i) {
      for (int64_t r = 0; r < kPanelRows; ++r) {
        double sum = 0, magnitude = 0;
        for (int64_t c = 0; c < kColumns; ++c) {
          const double product =
              static_cast<double>(weights[r * kColumns + c]) * static_cast<double>(x[i * kColumns + c]);
          sum += product;
          magnitude += std::abs(product);
        }
        // Sums of float32 in some order: of scaled groups, whose minima and offsets may cancel.
        EXPECT_NEAR(out[i * kPanelRows + r], sum, 0x1p-18 * magnitude)
            << "row " << i << " of " << count << ", output " << r;
      }
    }
    // An element's bits do not depend on its neighbours.
    if (count == 1) one_by_one = out;
    EXPECT_TRUE(std::equal(one_by_one.begin(), one_by_one.end(), out.begin())) << count;
  }
}

TEST_P(PanelProductTest, OfTwoPanelsHasTheBitsOfEach) {
  const auto [isa, type_id] = GetParam();
  const MatmulKernels& kernels = matmul_kernels(isa);
  const PairProduct of_two = product_of(kernels, type_id).pair;
  const quant::TypeInfo& type = quant::type_info(type_id);
  const bool of_32 = takes_quantized(type_id) && type.block == kQuantColumns;
  ASSERT_EQ(of_two != nullptr, of_32 && (isa == Isa::Avx512 || isa == Isa::Amx)) << "of blocks of 32 columns";
  if (of_two == nullptr) return;
  std::mt19937_64 random(7);
  for (const int64_t columns : {256, 768}) {
    const int64_t row_bytes = quant::bytes_of(type, columns), blocks_a_row = columns / kQuantColumns;
    std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
    std::vector<uint8_t> packed[2];
    for (std::vector<uint8_t>& panel : packed) {
      test::random_weights(type, file, random);
      panel.resize(static_cast<size_t>(panel_bytes(type_id, columns)));
      pack_panel(type_id, file.data(), row_bytes, kPanelRows, columns, panel.data());
    }
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kPairRows * columns));
    for (float& value : x) value = normal(random);
    std::vector<QuantBlock> blocks(static_cast<size_t>(kPairRows * blocks_a_row));
    kernels.quantize(x.data(), kPairRows * columns, blocks.data());
    const void* rows[kPairRows];
    for (int i = 0; i < kPairRows; ++i) rows[i] = &blocks[static_cast<size_t>(i * blocks_a_row)];
    std::vector<float> actual[2], expected(kPairRows * kPanelRows, NAN);
    for (std::vector<float>& out : actual) out.assign(expected.size() + 1, NAN);
    const uint8_t* panels[2] = {packed[0].data(), packed[1].data()};
    float* out[2] = {actual[0].data(), actual[1].data()};
    of_two(panels, columns, rows, out);
    for (int p = 0; p < 2; ++p) {
      EXPECT_TRUE(std::isnan(actual[p].back())) << "written past the end";
      actual[p].pop_back();
      product_of(kernels, type_id).panel(panels[p], columns, rows, kPairRows, expected.data(), kAskNothing);
      EXPECT_EQ(actual[p], expected) << "panel " << p << ", " << columns << " columns";
    }
  }
}

TEST_P(PanelProductTest, OfManyRowsHasTheBitsOfOne) {
  const auto [isa, type_id] = GetParam();
  const MatmulKernels& kernels = matmul_kernels(isa);
  const ManyProduct of_many = product_of(kernels, type_id).many;
  const quant::TypeInfo& type = quant::type_info(type_id);
  const bool shares = isa != Isa::Generic && (isa != Isa::Neon || type.block == 256);
  ASSERT_EQ(of_many != nullptr, takes_quantized(type_id) && shares) << "of all but floats";
  if (of_many == nullptr) return;
  std::mt19937_64 random(8);
  // Less than a stretch of columns, and one with a part of the next.
  for (const int64_t columns : {256, 768}) {
    const int64_t row_bytes = quant::bytes_of(type, columns), blocks_a_row = columns / kQuantColumns;
    std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
    test::random_weights(type, file, random);
    std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type_id, columns)));
    pack_panel(type_id, file.data(), row_bytes, kPanelRows, columns, panel.data());
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kManyRows * columns)), expected(kManyRows * kPanelRows);
    for (float& value : x) value = normal(random);
    std::vector<QuantBlock> blocks(static_cast<size_t>(kManyRows * blocks_a_row));
    kernels.quantize(x.data(), kManyRows * columns, blocks.data());
    const void* rows[kManyRows];
    for (int i = 0; i < kManyRows; ++i) {
      rows[i] = &blocks[static_cast<size_t>(i * blocks_a_row)];
      product_of(kernels, type_id)
          .panel(panel.data(), columns, rows + i, 1, &expected[i * kPanelRows], kAskNothing);
    }
    for (const int count : {1, 9, 62, kManyRows}) {
      std::vector<float> out(static_cast<size_t>(count) * kPanelRows + 1, NAN);
      of_many(panel.data(), columns, rows, count, out.data(), {0, 0});
      EXPECT_TRUE(std::isnan(out.back())) << "written past the end";
      out.pop_back();
      EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()))
          << count << " rows, " << columns << " columns";
    }
  }
}

TEST_P(PanelProductTest, NumbersOfAPanelAreTheFiles) {
  const auto [isa, type_id] = GetParam();
  const PanelNumbers numbers_of = product_of(matmul_kernels(isa), type_id).numbers;
  const bool gives = isa == Isa::Avx2 || isa == Isa::Neon;
  ASSERT_EQ(numbers_of != nullptr, takes_quantized(type_id) && gives) << "of all but floats";
  if (numbers_of == nullptr) return;
  const quant::TypeInfo& type = quant::type_info(type_id);
  constexpr int64_t kColumns = 512;
  const int64_t row_bytes = quant::bytes_of(type, kColumns);
  std::mt19937_64 random(9);
  std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
  test::random_weights(type, file, random);
  std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type_id, kColumns)));
  pack_panel(type_id, file.data(), row_bytes, kPanelRows, kColumns, panel.data());
  std::vector<float> numbers(kPanelRows * kColumns + 1, NAN), row(kColumns);
  numbers_of(panel.data(), kColumns, numbers.data());
  EXPECT_TRUE(std::isnan(numbers.back())) << "written past the end";
  for (int64_t r = 0; r < kPanelRows; ++r) {
    type.decode(file.data() + r * row_bytes, row.data(), kColumns);
    float largest = 0;
    for (const float number : row) largest = std::max(largest, std::fabs(number));
    // A product and a minimum, each rounded once, in whatever order the type's own decoding takes them.
    for (int64_t c = 0; c < kColumns; ++c)
      EXPECT_NEAR(numbers[c * kPanelRows + r], row[c], 0x1p-22f * largest) << "row " << r << ", column " << c;
  }
}

TEST_P(PanelProductTest, OfRowsAsTheyAreHasTheBitsOfThePackedPanels) {
  const auto [isa, type_id] = GetParam();
  const FileProduct of_file = product_of(matmul_kernels(isa), type_id).file;
  ASSERT_EQ(of_file != nullptr, takes_quantized(type_id)) << "of all but floats";
  if (of_file == nullptr) return;
  const quant::TypeInfo& type = quant::type_info(type_id);
  // Rows may lie further apart than they are long, and begin anywhere.
  for (const int64_t columns : {256, 768}) {
    for (const int64_t gap : {0, 2}) {
      const int64_t row_bytes = quant::bytes_of(type, columns) + gap;
      std::mt19937_64 random(6);
      std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes - gap));
      for (int64_t r = 0; r < kPanelRows; ++r) {
        const std::span row(file.data() + r * row_bytes, static_cast<size_t>(row_bytes - gap));
        test::random_weights(type, row, random);
      }
      std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(type_id, columns)));
      pack_panel(type_id, file.data(), row_bytes, kPanelRows, columns, panel.data());
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<size_t>(columns));
      for (float& value : x) value = normal(random);
      const MatmulKernels& kernels = matmul_kernels(isa);
      std::vector<QuantBlock> blocks(static_cast<size_t>(columns / kQuantColumns));
      kernels.quantize(x.data(), columns, blocks.data());
      const void* row = blocks.data();
      std::vector<float> expected(kPanelRows, NAN), actual(kPanelRows, NAN);
      product_of(kernels, type_id).panel(panel.data(), columns, &row, 1, expected.data(), {0, 0});
      of_file(file.data(), row_bytes, columns, row, actual.data(), {0, 0});
      EXPECT_EQ(actual, expected) << columns << " columns, " << gap << " bytes between rows";
    }
  }
}

/// The exponent of an MXFP4 block may be any: a scale beyond 2^103 is a number that 2^24 of it are not.
TEST(PanelProduct, ScalesOfMxfp4MayBeHugeAndTiny) {
  constexpr quant::Type kType = quant::Type::MXFP4;
  constexpr int64_t kColumns = 256, kBlocks = kColumns / kQuantColumns;
  const quant::TypeInfo& type = quant::type_info(kType);
  const int64_t row_bytes = quant::bytes_of(type, kColumns), block_bytes = row_bytes / kBlocks;
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> x(kPairRows * kColumns);
  for (float& value : x) value = normal(random);
  for (const int exponent : {40, 100, 127, 160, 228, 231, 234, 236}) {
    std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
    test::random_weights(type, file, random);
    for (size_t b = 0; b < file.size() / static_cast<size_t>(block_bytes); ++b)
      file[b * static_cast<size_t>(block_bytes)] = static_cast<std::byte>(exponent - b % 3);
    std::vector<uint8_t> panel(static_cast<size_t>(panel_bytes(kType, kColumns)));
    pack_panel(kType, file.data(), row_bytes, kPanelRows, kColumns, panel.data());
    std::vector<float> weights(kPanelRows * kColumns);
    for (int64_t r = 0; r < kPanelRows; ++r)
      type.decode(file.data() + r * row_bytes, &weights[static_cast<size_t>(r * kColumns)], kColumns);
    for (const Isa isa : usable_isas()) {
      const MatmulKernels& kernels = matmul_kernels(isa);
      std::vector<QuantBlock> blocks(kPairRows * kBlocks);
      kernels.quantize(x.data(), kPairRows * kColumns, blocks.data());
      const void* rows[kPairRows];
      for (int i = 0; i < kPairRows; ++i) rows[i] = &blocks[static_cast<size_t>(i * kBlocks)];
      std::vector<float> out(kPairRows * kPanelRows), other(out.size());
      product_of(kernels, kType).panel(panel.data(), kColumns, rows, kPairRows, out.data(), kAskNothing);
      for (int i = 0; i < kPairRows; ++i) {
        for (int64_t r = 0; r < kPanelRows; ++r) {
          double sum = 0, magnitude = 0;
          for (int64_t c = 0; c < kColumns; ++c) {
            const QuantBlock& block = blocks[static_cast<size_t>(i * kBlocks + c / kQuantColumns)];
            const double product = static_cast<double>(weights[static_cast<size_t>(r * kColumns + c)]) *
                                   block.scale * block.codes[c % kQuantColumns];
            sum += product, magnitude += std::abs(product);
          }
          EXPECT_NEAR(out[static_cast<size_t>(i * kPanelRows + r)], sum, 0x1p-18 * magnitude)
              << isa_name(isa) << ", exponent " << exponent;
        }
      }
      if (const PairProduct of_two = product_of(kernels, kType).pair) {
        const uint8_t* panels[2] = {panel.data(), panel.data()};
        float* to[2] = {other.data(), other.data()};
        of_two(panels, kColumns, rows, to);
        EXPECT_EQ(other, out) << isa_name(isa) << ", exponent " << exponent;
      }
      product_of(kernels, kType).file(file.data(), row_bytes, kColumns, rows[0], other.data(), kAskNothing);
      EXPECT_TRUE(std::equal(out.begin(), out.begin() + kPanelRows, other.begin())) << isa_name(isa);
    }
  }
}

std::vector<Param> params() {
  std::vector<Param> list;
  for (const Isa isa : usable_isas()) {
    for (const quant::TypeInfo& type : quant::all_types()) {
      if (can_pack(type.type)) list.push_back({isa, type.type});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, PanelProductTest, testing::ValuesIn(params()), [](const auto& param) {
  return std::string(isa_name(param.param.isa)) + "_" + quant::type_info(param.param.type).name;
});

}  // namespace
}  // namespace sluice::backend::cpu
