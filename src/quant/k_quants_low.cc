// Q2_K, Q3_K: blocks of 256 numbers in 16 groups of 16, each group with a small scale of its own.
// Two bits of number n: byte 32 * (n / 128) + n % 32 of the codes, bits 2 * (n / 32 % 4) on.
//   Q2_K  16 x (4-bit scale, 4-bit minimum), 64 B codes, f16 d, f16 dmin
//         d * scale * code - dmin * minimum
//   Q3_K  32 B third bits, 64 B codes, 12 B of 16 6-bit scales, f16 d
//         d * (scale - 32) * (code - 4); bit n / 32 of third-bit byte n % 32 is number n's
#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 256, kGroup = 16;

/// The 16 scales of a Q3_K block: low four bits as nibbles in bytes 0..7, high two bits in bytes 8..11.
void unpack_q3_k_scales(const uint8_t* packed, int* scales) {
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    const int high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
    scales[group] = (low | (high << 4)) - 32;
  }
}

}  // namespace

void decode_q2_k(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 84) {
    const uint8_t* codes = block + 16;
    const float d = load_f16(block + 80), dmin = load_f16(block + 82);
    for (int group = 0; group < 16; ++group, out += kGroup) {
      const float scale = d * static_cast<float>(block[group] & 15);
      const float minimum = dmin * static_cast<float>(block[group] >> 4);
      const uint8_t* from = codes + 32 * (group / 8) + kGroup * (group % 2);
      const int shift = 2 * (group / 2 % 4);
      for (int i = 0; i < kGroup; ++i) out[i] = scale * static_cast<float>((from[i] >> shift) & 3) - minimum;
    }
  }
}

void decode_q3_k(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 110) {
    const uint8_t* codes = block + 32;
    const float d = load_f16(block + 108);
    int scales[16];
    unpack_q3_k_scales(block + 96, scales);
    for (int group = 0; group < 16; ++group, out += kGroup) {
      const float scale = d * static_cast<float>(scales[group]);
      const uint8_t* from = codes + 32 * (group / 8) + kGroup * (group % 2);
      const uint8_t* third = block + kGroup * (group % 2);
      const int shift = 2 * (group / 2 % 4), third_shift = group / 2;
      for (int i = 0; i < kGroup; ++i) {
        const int code = ((from[i] >> shift) & 3) | (((third[i] >> third_shift) & 1) << 2);
        out[i] = scale * static_cast<float>(code - 4);
      }
    }
  }
}

}  // namespace sluice::quant
