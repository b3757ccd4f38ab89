// IQ4_XS: blocks of 256 numbers in 8 groups of 32 with 6-bit scales; codes look up IQ4_NL's table.
//   f16 d, u16 upper two bits of the scales, 4 B low nibbles of the scales, 128 B codes
//   number = d * (scale - 32) * table[code]; a group's 16 code bytes are laid out as in nibble.cc
#include "quant/codecs.h"

namespace sluice::quant {

void decode_iq4_xs(const std::byte* in, float* __restrict out, int64_t count) {
  constexpr int kBlock = 256, kGroup = 32, kHalf = 16;
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 136) {
    const float d = load_f16(block);
    const int upper = load_u16(block + 2);
    const uint8_t* codes = block + 8;
    for (int g = 0; g < 8; ++g, codes += kHalf, out += kGroup) {
      const int low = (block[4 + g / 2] >> (4 * (g % 2))) & 15;
      const float scale = d * static_cast<float>((low | (((upper >> (2 * g)) & 3) << 4)) - 32);
      for (int i = 0; i < kHalf; ++i) {
        out[i] = scale * kNonlinear4[codes[i] & 15];
        out[i + kHalf] = scale * kNonlinear4[codes[i] >> 4];
      }
    }
  }
}

}  // namespace sluice::quant
