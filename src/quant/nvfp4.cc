// NVFP4: 64 numbers, 16 under a scale.
//   4 scales, unsigned E4M3 floats; 4 times 8 bytes of codes, byte i of which holds number i in its low and
//   number i + 8 in its high half number = scale * (an E2M1 float)
// A file may have a scale of each whole matrix beside it, in a tensor of its own: program/ops/scale.h.
#include <array>

#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 64, kRun = 16, kHalf = 8;

constexpr float kE2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// The E4M3 floats without a sign, whose bit is not looked at; all ones are no number, and count as nothing.
constexpr std::array<float, 256> kUnsignedE4M3 = [] {
  std::array<float, 256> floats{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned exponent = code >> 3 & 15;
    const auto mantissa = static_cast<float>(code & 7);
    float power = 1.0f / 64;  // 2^(1 - 7), of the subnormals too
    for (unsigned i = 1; i < exponent; ++i) power *= 2;
    floats[code] = (exponent == 0 ? mantissa : 8 + mantissa) / 8 * power;
  }
  floats[0x7F] = 0;
  return floats;
}();

}  // namespace

void decode_nvfp4(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 36) {
    const uint8_t* codes = block + 4;
    for (int run = 0; run < kBlock / kRun; ++run, codes += kHalf, out += kRun) {
      const float scale = kUnsignedE4M3[block[run]];
      for (int i = 0; i < kHalf; ++i) {
        out[i] = scale * kE2M1[codes[i] & 15];
        out[i + kHalf] = scale * kE2M1[codes[i] >> 4];
      }
    }
  }
}

}  // namespace sluice::quant
