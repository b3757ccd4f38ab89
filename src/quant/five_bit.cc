// Q5_0, Q5_1: 32 numbers of five bits each under one scale.
// 16 bytes of nibbles as in nibble.cc; bit i of a 32-bit word is number i's fifth bit.
//   Q5_0  f16 d, u32 fifth bits, nibbles         d * (code - 16)
//   Q5_1  f16 d, f16 m, u32 fifth bits, nibbles  d * code + m
#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 32, kHalf = 16;

/// The 32 five-bit codes of a block, from its fifth bits and nibbles.
void unpack(const uint8_t* high_bits, const uint8_t* nibbles, int32_t* __restrict codes) {
  uint32_t high;
  std::memcpy(&high, high_bits, sizeof high);
  for (int i = 0; i < kHalf; ++i) {
    codes[i] = static_cast<int32_t>((nibbles[i] & 15u) | (((high >> i) & 1u) << 4));
    codes[i + kHalf] = static_cast<int32_t>((nibbles[i] >> 4) | (((high >> (i + kHalf)) & 1u) << 4));
  }
}

}  // namespace

void decode_q5_0(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 22, out += kBlock) {
    const float scale = load_f16(block);
    int32_t codes[kBlock];
    unpack(block + 2, block + 6, codes);
    for (int i = 0; i < kBlock; ++i) out[i] = scale * static_cast<float>(codes[i] - 16);
  }
}

void decode_q5_1(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 24, out += kBlock) {
    const float scale = load_f16(block), minimum = load_f16(block + 2);
    int32_t codes[kBlock];
    unpack(block + 4, block + 8, codes);
    for (int i = 0; i < kBlock; ++i) out[i] = scale * static_cast<float>(codes[i]) + minimum;
  }
}

}  // namespace sluice::quant
