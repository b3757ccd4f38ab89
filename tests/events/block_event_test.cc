// Events as bytes: what msgspec 0.22 wrote of vLLM's structs with the same values, recorded.
#include "events/block_event.h"

#include <gtest/gtest.h>

namespace sluice::events {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

using Kind = BlockEvent::Kind;

TEST(BlockEvents, AsArrays) {
  const std::vector<BlockEvent> events = {
      {.kind = Kind::Cleared},
      {.kind = Kind::Stored,
       .hashes = {0xfedcba9876543210, 7},
       .tokens = {0, 1, 127, 128, 255, 256, 65535, 65536, 200000, 5}},
      {.kind = Kind::Stored, .hashes = {uint64_t{1} << 63}, .parent = 7, .tokens = {300}},
      {.kind = Kind::Removed, .hashes = {7}},
  };
  const std::string expected =
      "93cb41da4a39801000009491b0416c6c426c6f636b73436c656172656498ab426c6f636b53746f72656492cffedcba98765432"
      "10"
      "07c09a00017fcc80ccffcd0100cdffffce00010000ce00030d400505c0a3475055c098ab426c6f636b53746f72656491cf8000"
      "00"
      "00000000000791cd012c05c0a3475055c093ac426c6f636b52656d6f7665649107a347505500";
  EXPECT_EQ(hex(encode(1764288000.25, events, 5, Layout::Arrays)), expected);
}

TEST(BlockEvents, AsMaps) {
  const std::vector<BlockEvent> events = {
      {.kind = Kind::Cleared},
      {.kind = Kind::Stored, .hashes = {7}, .tokens = {300}},
      {.kind = Kind::Removed, .hashes = {7}},
  };
  EXPECT_EQ(
      hex(encode(1764288000.25, events, 1, Layout::Maps)),
      "93cb41da4a39801000009381a474797065b0416c6c426c6f636b73436c656172656488a474797065ab426c6f636b53746f"
      "726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647391cd"
      "012caa626c6f636b5f73697a6501a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c083a47479"
      "7065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da347505500");
}

}  // namespace
}  // namespace sluice::events
