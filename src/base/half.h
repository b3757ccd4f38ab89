// 16-bit floats to float32 and back, in plain integer arithmetic that a compiler can vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

/// IEEE 754 binary16 to float32, exact; infinities and NaN are kept.
inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7FFFu) << 13;
  // Shifted into place the exponent is 112 too small; a float multiply mends it, subnormals included.
  const float scaled = std::bit_cast<float>(rest) * 0x1p112f;
  const uint32_t infinite = (half & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled) | infinite);
}

/// float32 to IEEE 754 binary16, rounded to nearest even; overflow becomes infinity, NaN stays NaN.
inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;   // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal, one unit is 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // an ulp of [0.5, 1) is 2^-24
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// bfloat16 to float32, exact.
inline float bf16_to_f32(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

/// float32 to bfloat16, rounded to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace sluice
