// Packed weights hold the file's numbers in the file's space: for every type, whole panels and tails.
#include "backend/cpu/packed.h"

#include <gtest/gtest.h>

#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

class PackedTest : public testing::TestWithParam<quant::Type> {};

TEST_P(PackedTest, EveryRowDecodesToTheNumbersOfTheFile) {
  const quant::TypeInfo& type = quant::type_info(GetParam());
  constexpr int64_t kColumns = 512, kRows = 21;
  const int64_t row_bytes = quant::bytes_of(type, kColumns), panel = panel_bytes(type.type, kColumns);
  std::mt19937_64 random(3);
  std::vector<std::byte> file(static_cast<size_t>(kRows * row_bytes));
  test::random_weights(type, file, random);
  std::vector<uint8_t> packed(static_cast<size_t>(packed_bytes(type.type, kRows, kColumns)), 0xA5);
  for (int64_t row = 0; row < kRows; row += kPanelRows) {
    pack_panel(type.type, file.data() + row * row_bytes, row_bytes,
               std::min<int64_t>(kPanelRows, kRows - row), kColumns,
               packed.data() + row / kPanelRows * panel);
  }
  std::vector<float> expected(kColumns), actual(kColumns);
  for (int64_t row = 0; row < kRows; ++row) {
    type.decode(file.data() + row * row_bytes, expected.data(), kColumns);
    decode_packed_row(type.type, packed.data() + row / kPanelRows * panel, row % kPanelRows, kColumns,
                      actual.data());
    ASSERT_EQ(actual, expected) << "row " << row;
  }
  for (int64_t row = kRows % kPanelRows; row < kPanelRows; ++row) {
    decode_packed_row(type.type, packed.data() + panel, row, kColumns, actual.data());
    for (const float value : actual)
      ASSERT_TRUE(std::isfinite(value)) << "a row that fills up the last panel";
  }
}

TEST_P(PackedTest, TakesTheSpaceOfTheFile) {
  const quant::TypeInfo& type = quant::type_info(GetParam());
  EXPECT_EQ(packed_bytes(type.type, 1536, 2048), quant::bytes_of(type, 1536 * 2048));
  // A last panel of few rows is a whole one: within 3% from 512 rows on.
  EXPECT_LE(static_cast<double>(packed_bytes(type.type, 513, 2048)),
            1.03 * static_cast<double>(quant::bytes_of(type, 513 * 2048)));
}

TEST_P(PackedTest, AWholePanelLiesAsItsRowsOneByOne) {
  // Whole panels are transposed by vectors, others copied row by row: a last row of zeroes is as good as
  // none.
  const quant::TypeInfo& type = quant::type_info(GetParam());
  for (const int64_t columns : {256, 768}) {
    const int64_t row_bytes = quant::bytes_of(type, columns);
    std::mt19937_64 random(4);
    std::vector<std::byte> file(static_cast<size_t>(kPanelRows * row_bytes));
    for (int64_t i = 0; i < (kPanelRows - 1) * row_bytes; ++i)
      file[static_cast<size_t>(i)] = static_cast<std::byte>(random());
    std::vector<uint8_t> whole(static_cast<size_t>(panel_bytes(type.type, columns)), 0xA5), some = whole;
    pack_panel(type.type, file.data(), row_bytes, kPanelRows, columns, whole.data());
    pack_panel(type.type, file.data(), row_bytes, kPanelRows - 1, columns, some.data());
    EXPECT_EQ(whole, some) << columns;
  }
}

TEST(PackedFifthBits, AreSpreadOneByOne) {
  // A block of Q5_0: a half, the word of fifth bits, 16 bytes of nibbles.
  constexpr int64_t kBytes = 22;
  for (const int64_t rows : {kPanelRows, kPanelRows - 1}) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<std::byte> file(kPanelRows * kBytes);
      const int64_t row = bit % rows;
      file[static_cast<size_t>(row * kBytes + 2 + bit / 8)] = std::byte{1} << bit % 8;
      std::vector<uint8_t> panel(kPanelRows * kBytes), expected(kPanelRows * kBytes);
      pack_panel(quant::Type::Q5_0, file.data(), kBytes, rows, 32, panel.data());
      // Behind four words of each row: bit 4j + b in bit j of byte b.
      expected[static_cast<size_t>(4 * 64 + 4 * row + bit % 4)] = static_cast<uint8_t>(1 << bit / 4);
      EXPECT_EQ(panel, expected) << "bit " << bit << " of row " << row;
    }
  }
}

std::vector<quant::Type> decodable_types() {
  std::vector<quant::Type> list;
  for (const quant::TypeInfo& type : quant::all_types()) {
    if (type.decode != nullptr) list.push_back(type.type);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Types, PackedTest, testing::ValuesIn(decodable_types()),
                         [](const auto& param) { return quant::type_info(param.param).name; });

}  // namespace
}  // namespace sluice::backend::cpu
