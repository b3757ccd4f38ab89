// The codec functions that the table (types.cc) points to, one file a family, and what they share.
// Inside this room only: everybody else goes through the table.
// Every decoder multiplies out one block at a time in fixed-size loops without branches, so that a compiler
// vectorises them: these are also what the plain CPU backend runs for types without a kernel of their own.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace sluice::quant {

static_assert(std::endian::native == std::endian::little, "block layouts are little-endian");

/// The value table of IQ4_NL and IQ4_XS: 16 steps that are finer near zero.
inline constexpr float kNonlinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

inline const uint8_t* as_u8(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }
inline uint8_t* as_u8(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

/// A 16-bit word at any address.
inline uint16_t load_u16(const uint8_t* at) {
  uint16_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

/// A binary16 at any address, as float.
inline float load_f16(const uint8_t* at) { return f16_to_f32(load_u16(at)); }

inline void store_f16(uint8_t* at, float value) {
  const uint16_t half = f32_to_f16(value);
  std::memcpy(at, &half, sizeof half);
}

// Each decodes or encodes `count` numbers, a multiple of the type's block (TypeInfo in types.h).
void decode_f32(const std::byte* in, float* out, int64_t count);
void decode_f16(const std::byte* in, float* out, int64_t count);
void decode_bf16(const std::byte* in, float* out, int64_t count);
void encode_f32(const float* in, std::byte* out, int64_t count);
void encode_f16(const float* in, std::byte* out, int64_t count);
void encode_bf16(const float* in, std::byte* out, int64_t count);

void decode_q4_0(const std::byte* in, float* out, int64_t count);
void decode_q4_1(const std::byte* in, float* out, int64_t count);
void decode_iq4_nl(const std::byte* in, float* out, int64_t count);
void decode_mxfp4(const std::byte* in, float* out, int64_t count);
void encode_q4_0(const float* in, std::byte* out, int64_t count);

void decode_q5_0(const std::byte* in, float* out, int64_t count);
void decode_q5_1(const std::byte* in, float* out, int64_t count);

void decode_q8_0(const std::byte* in, float* out, int64_t count);
void encode_q8_0(const float* in, std::byte* out, int64_t count);

void decode_q2_k(const std::byte* in, float* out, int64_t count);
void decode_q3_k(const std::byte* in, float* out, int64_t count);
void decode_q4_k(const std::byte* in, float* out, int64_t count);
void decode_q5_k(const std::byte* in, float* out, int64_t count);
void decode_q6_k(const std::byte* in, float* out, int64_t count);

void decode_iq4_xs(const std::byte* in, float* out, int64_t count);

void decode_iq2_xxs(const std::byte* in, float* out, int64_t count);
void decode_iq2_xs(const std::byte* in, float* out, int64_t count);
void decode_iq2_s(const std::byte* in, float* out, int64_t count);
void decode_iq3_xxs(const std::byte* in, float* out, int64_t count);
void decode_iq3_s(const std::byte* in, float* out, int64_t count);
void decode_iq1_s(const std::byte* in, float* out, int64_t count);
void decode_iq1_m(const std::byte* in, float* out, int64_t count);

void decode_nvfp4(const std::byte* in, float* out, int64_t count);

}  // namespace sluice::quant
