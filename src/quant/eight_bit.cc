// Q8_0: 32 signed bytes under one f16 scale; number = d * code.
#include <cmath>

#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 32, kBytes = 34;

/// Nearest integer, halves away from zero, within [-128, 127]; NaN becomes 0.
int8_t round_to_int8(float value) {
  const float bounded = value > 127 ? 127 : value < -128 ? -128 : value == value ? value : 0;
  const int whole = static_cast<int>(bounded);
  const float rest = bounded - static_cast<float>(whole);
  return static_cast<int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

}  // namespace

void decode_q8_0(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += kBytes, out += kBlock) {
    const float scale = load_f16(block);
    const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
    for (int i = 0; i < kBlock; ++i) out[i] = scale * static_cast<float>(codes[i]);
  }
}

void encode_q8_0(const float* in, std::byte* out, int64_t count) {
  uint8_t* block = as_u8(out);
  for (int64_t at = 0; at < count; at += kBlock, block += kBytes, in += kBlock) {
    float magnitude = 0;
    for (int i = 0; i < kBlock; ++i) magnitude = std::fabs(in[i]) > magnitude ? std::fabs(in[i]) : magnitude;
    const float scale = magnitude / 127;
    float inverse = scale != 0 ? 1 / scale : 0;
    if (!std::isfinite(inverse)) inverse = 0;  // a scale too small for a float's inverse is 0 as f16 too
    store_f16(block, scale);
    int8_t* codes = reinterpret_cast<int8_t*>(block + 2);
    for (int i = 0; i < kBlock; ++i) codes[i] = round_to_int8(in[i] * inverse);
  }
}

}  // namespace sluice::quant
