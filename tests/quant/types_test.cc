// The table of number formats against an independent implementation (dequantize.py).
#include "quant/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/file.h"
#include "base/half.h"

namespace sluice::quant {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<const TypeInfo*> types_with_codec() {
  std::vector<const TypeInfo*> types;
  for (const TypeInfo& info : all_types()) {
    if (info.decode != nullptr) types.push_back(&info);
  }
  return types;
}

/// What dequantize.py makes of `input`.
std::string oracle(const std::string& action, const std::string& type, std::span<const std::byte> input) {
  const auto folder = std::filesystem::temp_directory_path() / ("sluice_quant_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string in = folder / (action + type + ".in"), out = folder / (action + type + ".out");
  write_file(in, input);
  const std::string command = std::string(SLUICE_PYTHON " " SLUICE_SOURCE_DIR "/tests/quant/dequantize.py ") +
                              action + " " + type + " " + in + " " + out;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::string result = read_file(out);
  std::filesystem::remove_all(folder);
  return result;
}

/// Byte offsets of the f16 scales in a block.
std::vector<size_t> f16_fields(const std::string& type) {
  static const std::map<std::string, std::vector<size_t>> fields = {
      {"Q4_0", {0}},      {"Q4_1", {0, 2}}, {"Q5_0", {0}},    {"Q5_1", {0, 2}}, {"Q8_0", {0}},
      {"Q2_K", {80, 82}}, {"Q3_K", {108}},  {"Q4_K", {0, 2}}, {"Q5_K", {0, 2}}, {"Q6_K", {208}},
      {"IQ4_NL", {0}},    {"IQ4_XS", {0}},  {"IQ2_XXS", {0}}, {"IQ2_XS", {0}},  {"IQ2_S", {0}},
      {"IQ3_XXS", {0}},   {"IQ3_S", {0}},   {"IQ1_S", {0}},
  };
  const auto at = fields.find(type);
  return at != fields.end() ? at->second : std::vector<size_t>{};
}

/// Random blocks whose f16 scales are any finite f16. Blocks of one number are any bits at all.
Bytes random_blocks(const TypeInfo& info, size_t blocks) {
  std::mt19937_64 random(static_cast<uint64_t>(info.type) + 1);
  Bytes bytes(blocks * static_cast<size_t>(info.bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t block = 0; block < blocks; ++block) {
    for (const size_t at : f16_fields(info.name)) {
      std::byte& high = bytes[block * static_cast<size_t>(info.bytes) + at + 1];
      if ((high & std::byte{0x7C}) == std::byte{0x7C}) high &= std::byte{0xBF};  // no infinity, no NaN
    }
    // IQ1_M's f16 stands in four places; this is its exponent's highest bit.
    if (info.type == Type::IQ1_M) bytes[(block + 1) * static_cast<size_t>(info.bytes) - 1] &= std::byte{0xBF};
  }
  return bytes;
}

std::vector<float> decoded(const TypeInfo& info, const Bytes& bytes) {
  const auto count = static_cast<int64_t>(bytes.size()) / info.bytes * info.block;
  std::vector<float> numbers(static_cast<size_t>(count) + 1, -1234.5f);
  info.decode(bytes.data(), numbers.data(), count);
  EXPECT_EQ(numbers.back(), -1234.5f) << info.name << " writes past its end";
  numbers.pop_back();
  return numbers;
}

Bytes encoded(const TypeInfo& info, const std::vector<float>& numbers) {
  Bytes bytes(static_cast<size_t>(bytes_of(info, static_cast<int64_t>(numbers.size()))));
  info.encode(numbers.data(), bytes.data(), static_cast<int64_t>(numbers.size()));
  return bytes;
}

/// Random numbers in blocks of very different scales.
std::vector<float> random_numbers(size_t count) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / 32 % 12) - 4);
  }
  return numbers;
}

TEST(Types, TableIsConsistent) {
  for (const TypeInfo& info : all_types()) {
    EXPECT_EQ(find_type(static_cast<uint32_t>(info.type)), &info) << info.name;
    EXPECT_EQ(find_type(std::string(info.name)), &info) << info.name;
    EXPECT_EQ(&type_info(info.type), &info) << info.name;
    EXPECT_TRUE(info.encode == nullptr || info.decode != nullptr) << info.name;
    EXPECT_LE(info.bytes, 8 * info.block) << info.name;  // the file reader's overflow check rests on this
  }
  EXPECT_EQ(types_with_codec().size(), 24u);
  EXPECT_EQ(find_type(4u), nullptr);
  EXPECT_EQ(find_type(63u), nullptr);
  EXPECT_EQ(find_type(64u), nullptr);
  EXPECT_EQ(find_type(0xFFFFFFFFu), nullptr);
  EXPECT_EQ(find_type(std::string("q4_0")), nullptr);
  EXPECT_EQ(bytes_of(type_info(Type::Q6_K), 2048), 1680);
}

TEST(Types, DecodersAgreeWithTheOracle) {
  for (const TypeInfo* info : types_with_codec()) {
    const Bytes blocks = random_blocks(*info, info->block == 1 ? 1 << 16 : 1024);
    const std::vector<float> numbers = decoded(*info, blocks);
    const std::string expected = oracle("decode", info->name, blocks);
    ASSERT_EQ(expected.size(), numbers.size() * sizeof(float)) << info->name;
    size_t different = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      float wanted;
      std::memcpy(&wanted, expected.data() + 4 * i, 4);
      const float got = numbers[i];
      if (std::isnan(wanted) && std::isnan(got)) continue;
      const float step = std::nextafter(std::fabs(wanted), INFINITY) - std::fabs(wanted);
      const bool same = got == wanted || std::fabs(got - wanted) <= step;
      if (!same && ++different < 4)
        ADD_FAILURE() << info->name << " number " << i << ": " << got << ", not " << wanted;
    }
    EXPECT_EQ(different, 0u) << info->name;
  }
}

TEST(Types, EncodersAgreeWithTheOracle) {
  std::vector<float> numbers = random_numbers(1 << 16);
  std::fill_n(numbers.begin(), 32, 0.0f);
  for (size_t i = 0; i < 32; ++i) numbers[32 + i] = static_cast<float>(i) - 15.5f;  // ties in both formats
  numbers[64] = -numbers[65];  // two of the same magnitude
  for (const char* name : {"Q8_0", "Q4_0"}) {
    const Bytes bytes = encoded(*find_type(std::string(name)), numbers);
    const std::string expected = oracle("encode", name, std::as_bytes(std::span(numbers)));
    ASSERT_EQ(bytes.size(), expected.size());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0) << name;
  }
}

TEST(Types, RoundTripErrorIsWithinHalfAStep) {
  const std::vector<float> numbers = random_numbers(1 << 14);
  // Half a step of the code, as a share of the block's largest magnitude, and the scale's own f16 rounding.
  // Q4_0's positive numbers have one code less: a whole step.
  const std::map<std::string, float> bounds = {
      {"F32", 0.0f}, {"F16", 0x1p-11f}, {"BF16", 0x1p-8f}, {"Q8_0", 0.0045f}, {"Q4_0", 0.126f}};
  for (const TypeInfo& info : all_types()) {
    if (info.encode == nullptr) continue;
    const std::vector<float> back = decoded(info, encoded(info, numbers));
    const float bound = bounds.at(info.name);
    for (size_t block = 0; block < numbers.size(); block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(numbers[i]));
      for (size_t i = block; i < block + 32; ++i) {
        ASSERT_LE(std::fabs(back[i] - numbers[i]), bound * largest + 0x1p-20f) << info.name << " " << i;
      }
    }
  }
}

TEST(Types, EncodersTakeAnyInput) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {0.0f, -0.0f, kNan, kInfinity, -kInfinity, 1e38f, -3e38f, 1e-45f, 1e-40f, 65504.0f};
  for (const TypeInfo& info : all_types()) {
    if (info.encode == nullptr) continue;
    for (const float value : values) {
      std::vector<float> numbers(32, value);
      decoded(info, encoded(info, numbers));
      numbers.assign(32, 0.25f);
      numbers[7] = value;
      decoded(info, encoded(info, numbers));
    }
    EXPECT_THAT(decoded(info, encoded(info, std::vector<float>(32, 0.0f))), testing::Each(0.0f)) << info.name;
  }
}

TEST(Types, MxfpScalesCoverTheWholeExponentRange) {
  const TypeInfo& info = type_info(Type::MXFP4);
  for (int exponent = 0; exponent < 256; ++exponent) {
    Bytes block(17, std::byte{0x22});  // every number is 1.0 times the scale
    block[0] = static_cast<std::byte>(exponent);
    const float expected = static_cast<float>(std::ldexp(1.0, exponent - 127));
    EXPECT_THAT(decoded(info, block), testing::Each(expected)) << exponent;
  }
}

}  // namespace
}  // namespace sluice::quant
