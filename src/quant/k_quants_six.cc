// Q6_K: blocks of 256 numbers in 16 groups of 16, each group with a signed 8-bit scale.
//   128 B low nibbles, 64 B upper bit pairs, 16 int8 scales, f16 d; number = d * scale * (code - 32)
// The two halves of 128 numbers are alike. In a half, number 32k + i (k = 0..3) has its low four bits in
// nibble byte 32 * (k % 2) + i, the low half of it for k = 0, 1, and its upper two at bit 2k of pair byte i.
#include "quant/codecs.h"

namespace sluice::quant {

void decode_q6_k(const std::byte* in, float* __restrict out, int64_t count) {
  constexpr int kBlock = 256, kGroup = 16;
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 210) {
    const float d = load_f16(block + 208);
    for (int group = 0; group < 16; ++group, out += kGroup) {
      const int half = group / 8, k = group / 2 % 4, i0 = kGroup * (group % 2);
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
      const uint8_t* nibbles = block + 64 * half + 32 * (k % 2) + i0;
      const uint8_t* pairs = block + 128 + 32 * half + i0;
      const int shift = 4 * (k / 2), pair_shift = 2 * k;
      for (int i = 0; i < kGroup; ++i) {
        const int code = ((nibbles[i] >> shift) & 15) | (((pairs[i] >> pair_shift) & 3) << 4);
        out[i] = scale * static_cast<float>(code - 32);
      }
    }
  }
}

}  // namespace sluice::quant
