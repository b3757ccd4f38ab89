// Q4_K, Q5_K: blocks of 256 numbers in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//   Q4_K  f16 d, f16 dmin, 12 B scales and minima, 128 B nibbles
//   Q5_K  f16 d, f16 dmin, 12 B scales and minima, 32 B fifth bits, 128 B nibbles
//   number = d * scale * code - dmin * minimum
// Groups 2k and 2k + 1 are the low and the high halves of nibble bytes 32k .. 32k + 31; bit g of fifth-bit
// byte i belongs to number i of group g.
#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 256, kGroup = 32;

struct ScaleAndMinimum {
  float scale, minimum;
};

/// Group g's 6-bit pair. Groups 0..3: the low six bits of bytes g and g + 4. Groups 4..7: a nibble each of
/// byte g + 4, their upper two bits on top of bytes g - 4 and g.
ScaleAndMinimum unpack(const uint8_t* packed, int g, float d, float dmin) {
  int scale, minimum;
  if (g < 4) {
    scale = packed[g] & 63;
    minimum = packed[g + 4] & 63;
  } else {
    scale = (packed[g + 4] & 15) | ((packed[g - 4] >> 6) << 4);
    minimum = (packed[g + 4] >> 4) | ((packed[g] >> 6) << 4);
  }
  return {d * static_cast<float>(scale), dmin * static_cast<float>(minimum)};
}

}  // namespace

void decode_q4_k(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 144) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const uint8_t* nibbles = block + 16;
    for (int g = 0; g < 8; g += 2, nibbles += kGroup, out += 2 * kGroup) {
      const ScaleAndMinimum low = unpack(block + 4, g, d, dmin), high = unpack(block + 4, g + 1, d, dmin);
      for (int i = 0; i < kGroup; ++i) {
        out[i] = low.scale * static_cast<float>(nibbles[i] & 15) - low.minimum;
      }
      for (int i = 0; i < kGroup; ++i) {
        out[i + kGroup] = high.scale * static_cast<float>(nibbles[i] >> 4) - high.minimum;
      }
    }
  }
}

void decode_q5_k(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 176) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const uint8_t* fifth = block + 16;
    const uint8_t* nibbles = block + 48;
    for (int g = 0; g < 8; g += 2, nibbles += kGroup, out += 2 * kGroup) {
      const ScaleAndMinimum low = unpack(block + 4, g, d, dmin), high = unpack(block + 4, g + 1, d, dmin);
      for (int i = 0; i < kGroup; ++i) {
        const int code = (nibbles[i] & 15) | (((fifth[i] >> g) & 1) << 4);
        out[i] = low.scale * static_cast<float>(code) - low.minimum;
      }
      for (int i = 0; i < kGroup; ++i) {
        const int code = (nibbles[i] >> 4) | (((fifth[i] >> (g + 1)) & 1) << 4);
        out[i + kGroup] = high.scale * static_cast<float>(code) - high.minimum;
      }
    }
  }
}

}  // namespace sluice::quant
