// Q4_0, Q4_1, IQ4_NL, MXFP4: 32 numbers of four bits each under one scale.
// 16 bytes of codes: byte i holds number i in its low and number i + 16 in its high half.
//   Q4_0    f16 d, codes             d * (code - 8)
//   Q4_1    f16 d, f16 m, codes      d * code + m
//   IQ4_NL  f16 d, codes             d * table[code]
//   MXFP4   u8 e, codes              2^(e - 127) * (an E2M1 float: sign, two bits of exponent, one of
//   mantissa)
#include <cmath>

#include "quant/codecs.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 32, kHalf = 16;

/// The sixteen E2M1 floats, doubled: see half_e8m0.
constexpr float kDoubledE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};

/// Half of 2^(e - 127), which unlike the whole is finite for every e. The format calls e = 255 a NaN; like
/// other readers of GGUF files this one goes on counting.
float half_e8m0(uint8_t e) {
  // Half of e = 0 and of e = 1 are subnormal floats, 2^-128 and 2^-127.
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

/// 32 numbers by table lookup.
void decode_by_table(const uint8_t* __restrict codes, const float* table, float scale,
                     float* __restrict out) {
  for (int i = 0; i < kHalf; ++i) {
    out[i] = scale * table[codes[i] & 15];
    out[i + kHalf] = scale * table[codes[i] >> 4];
  }
}

}  // namespace

void decode_q4_0(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 18, out += kBlock) {
    const float scale = load_f16(block);
    const uint8_t* codes = block + 2;
    for (int i = 0; i < kHalf; ++i) out[i] = scale * static_cast<float>((codes[i] & 15) - 8);
    for (int i = 0; i < kHalf; ++i) out[i + kHalf] = scale * static_cast<float>((codes[i] >> 4) - 8);
  }
}

void decode_q4_1(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 20, out += kBlock) {
    const float scale = load_f16(block), minimum = load_f16(block + 2);
    const uint8_t* codes = block + 4;
    for (int i = 0; i < kHalf; ++i) out[i] = scale * static_cast<float>(codes[i] & 15) + minimum;
    for (int i = 0; i < kHalf; ++i) out[i + kHalf] = scale * static_cast<float>(codes[i] >> 4) + minimum;
  }
}

void decode_iq4_nl(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 18, out += kBlock) {
    decode_by_table(block + 2, kNonlinear4, load_f16(block), out);
  }
}

void decode_mxfp4(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 17, out += kBlock) {
    decode_by_table(block + 1, kDoubledE2M1, half_e8m0(block[0]), out);
  }
}

void encode_q4_0(const float* in, std::byte* out, int64_t count) {
  uint8_t* block = as_u8(out);
  for (int64_t at = 0; at < count; at += kBlock, block += 18, in += kBlock) {
    // The number of largest magnitude becomes code 0, that is -8, whose range reaches one step further.
    float extreme = 0, magnitude = 0;
    for (int i = 0; i < kBlock; ++i) {
      if (std::fabs(in[i]) > magnitude) {
        magnitude = std::fabs(in[i]);
        extreme = in[i];
      }
    }
    const float scale = extreme / -8;
    float inverse = scale != 0 ? 1 / scale : 0;
    if (!std::isfinite(inverse)) inverse = 0;  // a scale too small for a float's inverse is 0 as f16 too
    store_f16(block, scale);
    const auto code = [inverse](float value) {
      const float shifted = value * inverse + 8.5f;  // at least 0 for numbers; NaN takes the last branch
      return static_cast<uint8_t>(shifted >= 15 ? 15 : shifted > 0 ? static_cast<int>(shifted) : 0);
    };
    for (int i = 0; i < kHalf; ++i) {
      block[2 + i] = static_cast<uint8_t>(code(in[i]) | (code(in[i + kHalf]) << 4));
    }
  }
}

}  // namespace sluice::quant
