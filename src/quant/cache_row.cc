#include "quant/cache_row.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "quant/codecs.h"

namespace sluice::quant {
namespace {

/// The smallest binary16 that is not below a number of at least 0.
uint16_t f16_not_below(float value) {
  const uint16_t nearest = f32_to_f16(value);
  return f16_to_f32(nearest) < value ? static_cast<uint16_t>(nearest + 1) : nearest;
}

/// The nearest whole number, halves to even: adding 1.5 * 2^23 leaves it in the lowest bits.
int8_t nearest_code(float value) {
  return static_cast<int8_t>(std::bit_cast<uint32_t>(value + 0x1.8p23f) & 0xFFu);
}

void encode_run(const float* in, int8_t* codes, uint8_t* scale_at, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(in[i]));
  const uint16_t scale = f16_not_below(largest / 127);
  std::memcpy(scale_at, &scale, sizeof scale);
  const float step = f16_to_f32(scale), inverse = step > 0 ? 1 / step : 0.0f;
  for (int64_t i = 0; i < count; ++i) codes[i] = nearest_code(in[i] * inverse);
}

}  // namespace

bool is_cache_type(Type type) {
  return type == Type::F16 || type == Type::Q8_0 || type == Type::BF16 || type == Type::F32;
}

int64_t CacheRow::bytes() const {
  CHECK(is_cache_type(type) && exact >= 0 && exact <= columns, "{}", type_info(type).name);
  return type == Type::Q8_0 ? q8_bytes() : bytes_of(type_info(type), columns);
}

void CacheRow::encode(const float* in, std::byte* out) const {
  if (type != Type::Q8_0) return type_info(type).encode(in, out, columns);
  std::fill_n(out, q8_bytes(), std::byte{0});
  auto* codes = reinterpret_cast<int8_t*>(out);
  uint8_t* scales = as_u8(out) + scales_at();
  for (int64_t at = 0; at < coded(); at += kCacheRun, scales += 2)
    encode_run(in + at, codes + at, scales, std::min(kCacheRun, coded() - at));
  encode_f16(in + coded(), out + exact_at(), exact);
}

void CacheRow::decode(const std::byte* in, float* out) const {
  if (type != Type::Q8_0) return type_info(type).decode(in, out, columns);
  const auto* codes = reinterpret_cast<const int8_t*>(in);
  const uint8_t* scales = as_u8(in) + scales_at();
  for (int64_t at = 0; at < coded(); at += kCacheRun, scales += 2) {
    const float scale = load_f16(scales);
    const int64_t end = std::min(at + kCacheRun, coded());
    for (int64_t i = at; i < end; ++i) out[i] = scale * static_cast<float>(codes[i]);
  }
  decode_f16(in + exact_at(), out + coded(), exact);
}

}  // namespace sluice::quant
