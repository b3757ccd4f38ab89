// F32, F16, BF16: numbers as they are, no blocks.
#include "quant/codecs.h"

namespace sluice::quant {

void decode_f32(const std::byte* in, float* out, int64_t count) {
  if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

void encode_f32(const float* in, std::byte* out, int64_t count) {
  if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

void decode_f16(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* halves = as_u8(in);
  for (int64_t i = 0; i < count; ++i) out[i] = load_f16(halves + 2 * i);
}

void encode_f16(const float* in, std::byte* out, int64_t count) {
  uint8_t* halves = as_u8(out);
  for (int64_t i = 0; i < count; ++i) store_f16(halves + 2 * i, in[i]);
}

void decode_bf16(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* halves = as_u8(in);
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(halves + 2 * i));
}

void encode_bf16(const float* in, std::byte* out, int64_t count) {
  uint8_t* halves = as_u8(out);
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t half = f32_to_bf16(in[i]);
    std::memcpy(halves + 2 * i, &half, sizeof half);
  }
}

}  // namespace sluice::quant
