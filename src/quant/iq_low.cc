// IQ2, IQ3 and IQ1: blocks of 256 numbers in 8 groups of 32. Codes name points of a grid (iq_grids.h), the
// magnitudes of 8 numbers (IQ3: 4); signs stand apart, a bit a number, set where it is negative.
//   IQ2_XXS  f16 d; 8 groups of: 4 codes of a byte, 4 signs of 7 bits, a scale of 4     d * (2 scale + 1) / 8
//   IQ2_XS   f16 d, 32 words of: code of 9 bits, signs of 7; 16 scales of 4 bits        the same, 16 numbers
//   a scale IQ2_S    f16 d, 32 low bytes of codes, 32 signs of 8 bits, two more bits of each code, 16 scales:
//   as IQ2_XS IQ3_XXS  f16 d, 64 codes of a byte; 8 groups of: 4 signs of 7 bits, a scale of 4    d * (2
//   scale + 1) / 4 IQ3_S    f16 d, 64 low bytes of codes, their 64 ninth bits, 32 signs of 8 bits, 8 scales
//   of 4   d * (2 scale + 1) IQ1_S    f16 d, 32 low bytes of codes, 8 words of: 4 times 3 more bits, a scale
//   of 3, a shift   d * (2 scale + 1) IQ1_M    32 low bytes of codes, 32 times 3 more bits and a shift, 16
//   scales of 3 bits with d's bits between
// Of signs of 7 bits the eighth number's makes their count even. IQ1's numbers are -1, 0 or 1, and an eighth
// more, or less where the shift is set.
#include "quant/codecs.h"
#include "quant/iq_grids.h"

namespace sluice::quant {
namespace {

constexpr int kBlock = 256, kGroups = 8;

uint32_t load_u32(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

/// Bit `i` of eight bits, the eighth of which makes the count of ones even.
unsigned even_signs(unsigned seven) { return seven | static_cast<unsigned>(std::popcount(seven) & 1) << 7; }

/// Four numbers: the word's bytes, negative where `signs` has a bit.
void put_four(uint32_t word, unsigned signs, float scale, float* out) {
  for (int i = 0; i < 4; ++i) {
    const auto magnitude = static_cast<float>(word >> (8 * i) & 255);
    out[i] = scale * ((signs >> i & 1) != 0 ? -magnitude : magnitude);
  }
}

void put_eight(const uint32_t* point, unsigned signs, float scale, float* out) {
  put_four(point[0], signs, scale, out);
  put_four(point[1], signs >> 4, scale, out + 4);
}

/// Eight numbers of IQ1 in eighths, all shifted by one of them.
void put_eighths(const uint32_t* point, bool down, float scale, float* out) {
  for (int i = 0; i < 8; ++i) {
    const int eighths = static_cast<int>(point[i / 4] >> (8 * (i % 4)) & 255) - kIq1Zero + (down ? -1 : 1);
    out[i] = scale * static_cast<float>(eighths);
  }
}

/// d * (2 scale + 1) / parts
float odd_scale(float d, unsigned scale, float parts) {
  return d * static_cast<float>(2 * scale + 1) / parts;
}

/// The scale of the 16 numbers from 16 * half on.
unsigned nibble(const uint8_t* scales, int half) { return scales[half / 2] >> (4 * (half % 2)) & 15u; }

}  // namespace

void decode_iq2_xxs(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 66) {
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* codes = block + 2 + 8 * g;
      const uint32_t signs = load_u32(codes + 4);
      const float scale = odd_scale(load_f16(block), signs >> 28, 8);
      for (int k = 0; k < 4; ++k, out += 8)
        put_eight(&kIq2Xxs[2u * codes[k]], even_signs(signs >> (7 * k) & 127), scale, out);
    }
  }
}

void decode_iq2_xs(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 74) {
    for (int k = 0; k < 32; ++k, out += 8) {
      const unsigned word = load_u16(block + 2 + 2 * k);
      const float scale = odd_scale(load_f16(block), nibble(block + 66, k / 2), 8);
      put_eight(&kIq2Xs[2 * (word & 511)], even_signs(word >> 9), scale, out);
    }
  }
}

void decode_iq2_s(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 82) {
    for (int k = 0; k < 32; ++k, out += 8) {
      const unsigned code = block[2 + k] | (block[66 + k / 4] >> (2 * (k % 4)) & 3u) << 8;
      const float scale = odd_scale(load_f16(block), nibble(block + 74, k / 2), 8);
      put_eight(&kIq2S[2 * code], block[34 + k], scale, out);
    }
  }
}

void decode_iq3_xxs(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 98) {
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* codes = block + 2 + 8 * g;
      const uint32_t signs = load_u32(block + 66 + 4 * g);
      const float scale = odd_scale(load_f16(block), signs >> 28, 4);
      for (int k = 0; k < 8; ++k, out += 4) {
        const unsigned of_eight = even_signs(signs >> (7 * (k / 2)) & 127);
        put_four(kIq3Xxs[codes[k]], of_eight >> (4 * (k % 2)), scale, out);
      }
    }
  }
}

void decode_iq3_s(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 110) {
    for (int k = 0; k < 64; ++k, out += 4) {
      const unsigned code = block[2 + k] | (block[66 + k / 8] >> (k % 8) & 1u) << 8;
      const float scale = odd_scale(load_f16(block), nibble(block + 106, k / 8), 1);
      put_four(kIq3S[code], static_cast<unsigned>(block[74 + k / 2]) >> (4 * (k % 2)), scale, out);
    }
  }
}

void decode_iq1_s(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 50) {
    for (int k = 0; k < 32; ++k, out += 8) {
      const unsigned word = load_u16(block + 34 + 2 * (k / 4));
      const unsigned code = block[2 + k] | (word >> (3 * (k % 4)) & 7) << 8;
      const float scale = odd_scale(load_f16(block), word >> 12 & 7, 8);
      put_eighths(&kIq1[2 * code], (word & 0x8000) != 0, scale, out);
    }
  }
}

void decode_iq1_m(const std::byte* in, float* __restrict out, int64_t count) {
  const uint8_t* block = as_u8(in);
  for (int64_t at = 0; at < count; at += kBlock, block += 56) {
    unsigned half = 0;
    for (int i = 0; i < 4; ++i) half |= static_cast<unsigned>(load_u16(block + 48 + 2 * i)) >> 12 << (4 * i);
    const float d = f16_to_f32(static_cast<uint16_t>(half));
    for (int k = 0; k < 32; ++k, out += 8) {
      const unsigned more = block[32 + k / 2] >> (4 * (k % 2)) & 15u;
      const unsigned code = block[k] | (more & 7) << 8;
      const unsigned scale =
          static_cast<unsigned>(load_u16(block + 48 + 2 * (k / 8))) >> (3 * (k % 8 / 2)) & 7;
      put_eighths(&kIq1[2 * code], (more & 8) != 0, odd_scale(d, scale, 8), out);
    }
  }
}

}  // namespace sluice::quant
