// Keys and checksums against other implementations of the same functions.
#include "store/page_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "store/checksum.h"

namespace sluice::store {
namespace {

std::vector<int32_t> tokens(int32_t first) {
  std::vector<int32_t> list(64);
  std::iota(list.begin(), list.end(), first);
  return list;
}

// Computed with Python's hashlib.
TEST(PageKey, IsTheChainOfHashesThatItSays) {
  const PageKey root = root_key("model, cache");
  EXPECT_EQ(root.hex(), "23a5cabab0a58f33a62693c6dce76992");
  const PageKey first = page_key(root, 7, tokens(0));
  EXPECT_EQ(first.hex(), "f3bc1e1b7db99ae4414e7937c856a5e3");
  EXPECT_EQ(page_key(first, 7, tokens(64)).hex(), "9289c4dff6cf786469855190b6bbf2b3");
  EXPECT_EQ(state_key(first).hex(), "bbed6fa1958dec64e56fce52fe19cdf9");
}

TEST(PageKey, IsAnotherOneForWhateverIsOtherwise) {
  const PageKey root = root_key("model");
  const PageKey key = page_key(root, 0, tokens(0));
  EXPECT_NE(key, page_key(root, 1, tokens(0))) << "others share it";
  EXPECT_NE(key, page_key(root_key("other model"), 0, tokens(0)));
  EXPECT_NE(key, page_key(root, 0, tokens(1)));
  EXPECT_NE(key, page_key(key, 0, tokens(0))) << "the same tokens further back";
  EXPECT_NE(key, state_key(key));
}

TEST(PageKey, IsReadAsItIsWritten) {
  const PageKey key = root_key("model");
  EXPECT_EQ(PageKey::from_hex(key.hex()), key);
  for (const char* text : {"", "00", "0123456789abcdef0123456789abcdeg", "0123456789ABCDEF0123456789abcdef",
                           "0123456789abcdef0123456789abcdef0", "../../../../../../etc/passwd1234"})
    EXPECT_FALSE(PageKey::from_hex(text)) << text;
}

// Computed with the package xxhash.
TEST(Checksum, IsXxh64) {
  struct Case {
    size_t bytes;
    uint64_t plain, seeded;
  };
  for (const auto& [bytes, plain, seeded] :
       std::initializer_list<Case>{{0, 0xef46db3751d8e999, 0x4be1d406981cfd3b},
                                   {1, 0x1f25c8d0bc1f4bb6, 0x8e04806881b4d61d},
                                   {3, 0x31d2363f52e564c9, 0xa4218281579dbc2c},
                                   {4, 0x9bb64b7d66ee9fda, 0x8e0e5dcb6e4c4a2e},
                                   {7, 0x9a7b149959ce60d8, 0x5952098bba4e3e1c},
                                   {8, 0xdab99d95c6f90092, 0xbc36e05bdafc3df7},
                                   {31, 0xa2aa5f33cc4a6119, 0x4b620437708c3ea9},
                                   {32, 0x23c3c17ef790fd97, 0xb483e00f1dd67337},
                                   {33, 0x50a7cfc7ba588784, 0xbb0f5983c203f593},
                                   {100, 0xa61f8d4c170fe531, 0x708dc77abb05ec00},
                                   {1000, 0x5f235fa033f1a3fb, 0x208be8caf3f789af},
                                   {4096, 0x796398cd432797cc, 0x9b95a478f0ad0d51}}) {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 7 + 3) % 256);
    EXPECT_EQ(checksum(data), plain) << bytes;
    EXPECT_EQ(checksum(data, 5), seeded) << bytes;
  }
}

}  // namespace
}  // namespace sluice::store
