// Number formats as src/quant has them: units of eight numbers, four from each of two columns, out of the
// bytes that a file holds. The format is a constant of the pipeline, so that all others fall away. Nothing
// here branches by data: loads behind a branch wait for those before it.
#ifndef FORMATS_GLSL
#define FORMATS_GLSL

#include "common.glsl"

const uint kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10, kQ3_K = 11,
           kQ4_K = 12, kQ5_K = 13, kQ6_K = 14, kIQ2_XXS = 16, kIQ2_XS = 17, kIQ3_XXS = 18, kIQ1_S = 19,
           kIQ4_NL = 20, kIQ3_S = 21, kIQ2_S = 22, kIQ4_XS = 23, kIQ1_M = 29, kBF16 = 30, kMXFP4 = 39,
           kNVFP4 = 40;

// Where tables begin (tables.cc): IQ4_NL's steps, the doubled E2M1 numbers, the E4M3 numbers, grids.
const uint kNonlinearAt = 0, kE2M1At = 16, kE4M3At = 32, kIq2XxsAt = 288, kIq2XsAt = 800, kIq2SAt = 1824,
           kIq1At = 3872, kIq3XxsAt = 7968, kIq3SAt = 8224;

// At a multiple of 4, as all is in blocks whose bytes are one.
uint word_at(uint source, uint at) { return word_of(source, at >> 2); }
uint bytes4(uint source, uint at) {
  uint low = word_of(source, at >> 2), high = word_of(source, (at >> 2) + 1u), shift = (at & 3u) * 8u;
  return low >> shift | high << (31u - shift) << 1;  // no branch, and no shift by 32
}
uint bytes2(uint source, uint at) { return bytes4(source, at) & 0xFFFFu; }
uint byte1(uint source, uint at) { return word_of(source, at >> 2) >> ((at & 3u) * 8u) & 0xFFu; }
int signed1(uint source, uint at) { return bitfieldExtract(int(byte1(source, at)), 0, 8); }
// A binary16 at an even place.
float half1(uint source, uint at) { return half_at(word_of(source, at >> 2) >> ((at & 2u) * 8u)); }

// Bytes as floats: they become the last bits of 2^23, which is taken off again. Some devices convert integers
// at an eighth of the speed at which they add.
vec4 bytes_less(uint v, float offset) {
  uint high = v >> 16;
  vec4 bytes = uintBitsToFloat(uvec4(v & 0xFFu, v & 0xFF00u, high & 0xFFu, high & 0xFF00u) | 0x4B000000u);
  return bytes * vec4(1, 0.00390625, 1, 0.00390625) - (vec4(8388608, 32768, 8388608, 32768) + offset);
}
vec4 unpack_bytes(uint v) { return bytes_less(v, 0.0); }
vec4 signed_bytes(uint v) { return bytes_less(v ^ 0x80808080u, 128.0); }
vec4 nibbles(uint v) { return unpack_bytes(v & 0x0F0F0F0Fu); }
// Four bits, from bit 0 on, each to the place of bit `to` of a byte.
uint spread(uint bits, uint to) {
  return ((bits & 1u) | (bits & 2u) << 7 | (bits & 4u) << 14 | (bits & 8u) << 21) << to;
}
vec4 by_table(uint at, uint codes) {
  return vec4(uintBitsToFloat(tables.words[at + (codes & 15u)]),
              uintBitsToFloat(tables.words[at + (codes >> 8 & 15u)]),
              uintBitsToFloat(tables.words[at + (codes >> 16 & 15u)]),
              uintBitsToFloat(tables.words[at + (codes >> 24 & 15u)]));
}
// Bytes of a block, and numbers of it.
uint block_bytes(uint format) {
  switch (format) {
    case kQ4_0: case kIQ4_NL: return 18;
    case kQ4_1: return 20;
    case kQ5_0: return 22;
    case kQ5_1: return 24;
    case kQ8_0: return 34;
    case kMXFP4: return 17;
    case kNVFP4: return 36;
    case kQ2_K: return 84;
    case kQ3_K: case kIQ3_S: return 110;
    case kQ4_K: return 144;
    case kQ5_K: return 176;
    case kQ6_K: return 210;
    case kIQ2_XXS: return 66;
    case kIQ2_XS: return 74;
    case kIQ2_S: return 82;
    case kIQ3_XXS: return 98;
    case kIQ1_S: return 50;
    case kIQ1_M: return 56;
    case kIQ4_XS: return 136;
  }
  return 0;
}

// The first columns of a unit's two fours.
uvec2 columns8(uint format, uint unit) {
  uint block = unit >> 5, u = unit & 31u, j = u & 7u, c = 0;
  switch (format) {
    case kQ4_0: case kQ4_1: case kQ5_0: case kQ5_1: case kIQ4_NL: case kMXFP4: case kIQ4_XS:
      c = 32u * (unit >> 2) + 4u * (unit & 3u);
      return uvec2(c, c + 16u);
    case kNVFP4:
      c = 16u * (unit >> 1) + 4u * (unit & 1u);
      return uvec2(c, c + 8u);
    case kQ4_K: case kQ5_K:
      c = 256u * block + 64u * (u >> 3) + 4u * j;
      return uvec2(c, c + 32u);
    case kQ6_K:
      c = 256u * block + 128u * (u >> 4) + 32u * (u >> 3 & 1u) + 4u * j;
      return uvec2(c, c + 64u);
    case kQ2_K: case kQ3_K:
      c = 256u * block + 128u * (u >> 4) + 64u * (u >> 3 & 1u) + 4u * j;
      return uvec2(c, c + 32u);
  }
  return uvec2(8u * unit, 8u * unit + 4u);
}

// Four bytes from a place within the first of two words, which may be any byte; a binary16 at an even one.
uint bytes_of(uint low, uint high, uint at) {
  uint shift = (at & 3u) * 8u;
  return low >> shift | high << (31u - shift) << 1;
}
float half_in(uint word, uint at) { return half_at(word >> ((at & 2u) * 8u)); }

// Scales and minima of Q4_K and Q5_K, of the groups 2k and 2k + 1, from a block's first 16 bytes.
void scales_and_minima(uvec4 head, uint k, out vec2 scales, out vec2 minima) {
  vec2 d = unpackHalf2x16(head.x);
  uint shift = 16u * (k & 1u), low = head.y >> shift, high = head.z >> shift, both = head.w >> shift;
  bool first = k < 2u;
  uint scale = first ? low & 0x3F3Fu : (both & 0x0F0Fu) | (low >> 2 & 0x3030u);
  uint minimum = first ? high & 0x3F3Fu : (both >> 4 & 0x0F0Fu) | (high >> 2 & 0x3030u);
  scales = d.x * vec2(scale & 255u, scale >> 8), minima = d.y * vec2(minimum & 255u, minimum >> 8);
}

void of_32(uint format, uint source, uint row, uint unit, out vec4 a, out vec4 b) {
  uint at = row + block_bytes(format) * (unit >> 2), j = unit & 3u, v = 0;
  switch (format) {
    case kQ4_0: {
      float d = half1(source, at);
      v = bytes4(source, at + 2u + 4u * j);
      a = d * bytes_less(v & 0x0F0F0F0Fu, 8.0), b = d * bytes_less(v >> 4 & 0x0F0F0F0Fu, 8.0);
      return;
    }
    case kQ4_1: {
      vec2 d = unpackHalf2x16(word_at(source, at));
      v = word_at(source, at + 4u + 4u * j);
      a = d.x * nibbles(v) + d.y, b = d.x * nibbles(v >> 4) + d.y;
      return;
    }
    case kQ5_0: case kQ5_1: {
      uint more = format == kQ5_1 ? 2u : 0u;
      float d = half1(source, at);
      uint high = bytes4(source, at + 2u + more) >> (4u * j);
      v = bytes4(source, at + 6u + more + 4u * j);
      vec4 low_codes = unpack_bytes((v & 0x0F0F0F0Fu) | spread(high, 4u));
      vec4 high_codes = unpack_bytes((v >> 4 & 0x0F0F0F0Fu) | spread(high >> 16, 4u));
      float m = format == kQ5_1 ? half1(source, at + 2u) : -16.0 * d;
      a = d * low_codes + m, b = d * high_codes + m;
      return;
    }
    case kIQ4_NL: {
      float d = half1(source, at);
      v = bytes4(source, at + 2u + 4u * j);
      a = d * by_table(kNonlinearAt, v), b = d * by_table(kNonlinearAt, v >> 4);
      return;
    }
    case kMXFP4: {  // half of 2^(e - 127), as the numbers are doubled
      uint e = byte1(source, at);
      float d = e < 2u ? (e == 0u ? 0.5 : 1.0) * uintBitsToFloat(0x00800000u) * 0.5
                       : uintBitsToFloat((e - 1u) << 23);
      v = bytes4(source, at + 1u + 4u * j);
      a = d * by_table(kE2M1At, v), b = d * by_table(kE2M1At, v >> 4);
      return;
    }
  }
  a = b = vec4(0);
}

void of_256(uint format, uint source, uint row, uint unit, out vec4 a, out vec4 b) {
  uint at = row + block_bytes(format) * (unit >> 5), u = unit & 31u, j = u & 7u;
  uint q = u >> 3 & 1u, h = u >> 4;
  switch (format) {
    case kQ2_K: {
      vec2 d = unpackHalf2x16(word_at(source, at + 80u));
      uint v = word_at(source, at + 16u + 32u * h + 4u * j) >> (4u * q);
      uint scales = word_at(source, at + 8u * h + 4u * q) >> (8u * (j >> 2));
      a = d.x * float(scales & 15u) * unpack_bytes(v & 0x03030303u) - d.y * float(scales >> 4 & 15u);
      b = d.x * float(scales >> 16 & 15u) * unpack_bytes(v >> 2 & 0x03030303u) - d.y * float(scales >> 20 & 15u);
      return;
    }
    case kQ3_K: {
      float d = half1(source, at + 108u);
      uint v = bytes4(source, at + 32u + 32u * h + 4u * j) >> (4u * q);
      uint third = bytes4(source, at + 4u * j) >> (4u * h + 2u * q);
      uint group = j >> 2;
      uint low = bytes4(source, at + 96u + 4u * q) >> (8u * group + 4u * h) & 0x000F000Fu;
      uint high = bytes4(source, at + 104u) >> (8u * group + 4u * h + 2u * q) & 0x00030003u;
      uint scales = low | high << 4;
      vec4 first = unpack_bytes((v & 0x03030303u) | (third & 0x01010101u) << 2);
      vec4 second = unpack_bytes((v >> 2 & 0x03030303u) | (third >> 1 & 0x01010101u) << 2);
      a = d * float(int(scales & 63u) - 32) * (first - 4.0);
      b = d * float(int(scales >> 16) - 32) * (second - 4.0);
      return;
    }
    case kQ4_K: case kQ5_K: {  // blocks are multiples of 16 bytes, and begin at one
      uint k = u >> 3, codes = word_at(source, at + (format == kQ5_K ? 48u : 16u) + 32u * k + 4u * j);
      vec2 scales, minima;
      scales_and_minima(quad_of(source, at >> 4), k, scales, minima);
      uint first = codes & 0x0F0F0F0Fu, second = codes >> 4 & 0x0F0F0F0Fu;
      if (format == kQ5_K) {
        uint fifth = word_at(source, at + 16u + 4u * j) >> (2u * k);
        first |= (fifth & 0x01010101u) << 4, second |= (fifth >> 1 & 0x01010101u) << 4;
      }
      a = scales.x * unpack_bytes(first) - minima.x, b = scales.y * unpack_bytes(second) - minima.y;
      return;
    }
    case kQ6_K: {
      uint group = at + 192u + 8u * h + 2u * q + (j >> 2);
      float d = half1(source, at + 208u);
      uint v = bytes4(source, at + 64u * h + 32u * q + 4u * j);
      uint pairs = bytes4(source, at + 128u + 32u * h + 4u * j) >> (2u * q);
      uint first = (v & 0x0F0F0F0Fu) | (pairs & 0x03030303u) << 4;
      uint second = (v >> 4 & 0x0F0F0F0Fu) | (pairs >> 4 & 0x03030303u) << 4;
      a = d * float(signed1(source, group)) * bytes_less(first, 32.0);
      b = d * float(signed1(source, group + 4u)) * bytes_less(second, 32.0);
      return;
    }
    case kIQ4_XS: {
      uint g = u >> 2, i = u & 3u;
      uint head = word_at(source, at), low = word_at(source, at + 4u) >> (4u * g) & 15u;
      uint high = head >> (16u + 2u * g) & 3u;
      float d = half_at(head) * float(int(low | high << 4) - 32);
      uint v = word_at(source, at + 8u + 16u * g + 4u * i);
      a = d * by_table(kNonlinearAt, v), b = d * by_table(kNonlinearAt, v >> 4);
      return;
    }
  }
  a = b = vec4(0);
}

vec4 with_signs(uint magnitudes, uint signs) {
  vec4 m = unpack_bytes(magnitudes);
  return vec4((signs & 1u) != 0u ? -m.x : m.x, (signs & 2u) != 0u ? -m.y : m.y, (signs & 4u) != 0u ? -m.z : m.z,
              (signs & 8u) != 0u ? -m.w : m.w);
}
// Seven signs, and the eighth that makes their count even.
uint even_signs(uint seven) { return seven | (bitCount(seven) & 1u) << 7; }
uint nibble_at(uint source, uint scales, uint half_group) {
  return byte1(source, scales + (half_group >> 1)) >> (4u * (half_group & 1u)) & 15u;
}

// The formats whose codes name points of grids: unit k of a block is numbers 8k and on.
void of_grids(uint format, uint source, uint row, uint unit, out vec4 a, out vec4 b) {
  uint at = row + block_bytes(format) * (unit >> 5), k = unit & 31u, g = k >> 2;
  float d = half1(source, at);
  uint point = 0, second_point = 0, signs = 0, scale = 0;
  switch (format) {
    case kIQ2_XXS: {
      uint codes = at + 2u + 8u * g, word = bytes4(source, codes + 4u);
      point = kIq2XxsAt + 2u * byte1(source, codes + (k & 3u));
      signs = even_signs(word >> (7u * (k & 3u)) & 127u), scale = word >> 28;
      break;
    }
    case kIQ2_XS: {
      uint word = bytes2(source, at + 2u + 2u * k);
      point = kIq2XsAt + 2u * (word & 511u);
      signs = even_signs(word >> 9), scale = nibble_at(source, at + 66u, k >> 1);
      break;
    }
    case kIQ2_S: {
      uint code = byte1(source, at + 2u + k) | (byte1(source, at + 66u + g) >> (2u * (k & 3u)) & 3u) << 8;
      point = kIq2SAt + 2u * code;
      signs = byte1(source, at + 34u + k), scale = nibble_at(source, at + 74u, k >> 1);
      break;
    }
    case kIQ3_XXS: {
      uint word = bytes4(source, at + 66u + 4u * g);
      point = kIq3XxsAt + byte1(source, at + 2u + 2u * k);
      second_point = kIq3XxsAt + byte1(source, at + 3u + 2u * k);
      signs = even_signs(word >> (7u * (k & 3u)) & 127u), scale = word >> 28;
      break;
    }
    case kIQ3_S: {
      uint ninth = byte1(source, at + 66u + g) >> (2u * (k & 3u));
      point = kIq3SAt + (byte1(source, at + 2u + 2u * k) | (ninth & 1u) << 8);
      second_point = kIq3SAt + (byte1(source, at + 3u + 2u * k) | (ninth >> 1 & 1u) << 8);
      signs = byte1(source, at + 74u + k), scale = nibble_at(source, at + 106u, g);
      break;
    }
  }
  bool of_four = format == kIQ3_XXS || format == kIQ3_S;
  if (!of_four) second_point = point + 1u;
  float parts = format == kIQ3_S ? 1.0 : format == kIQ3_XXS ? 0.25 : 0.125;
  float step = d * float(2u * scale + 1u) * parts;
  a = step * with_signs(tables.words[point], signs);
  b = step * with_signs(tables.words[second_point], signs >> 4);
}

void of_iq1(uint format, uint source, uint row, uint unit, out vec4 a, out vec4 b) {
  uint at = row + block_bytes(format) * (unit >> 5), k = unit & 31u, code = 0, scale = 0;
  bool down = false;
  float d = 0;
  if (format == kIQ1_S) {
    uint word = bytes2(source, at + 34u + 2u * (k >> 2));
    code = byte1(source, at + 2u + k) | (word >> (3u * (k & 3u)) & 7u) << 8;
    scale = word >> 12 & 7u, down = (word & 0x8000u) != 0u, d = half1(source, at);
  } else {
    uint bits = 0;
    for (uint i = 0; i < 4; ++i) bits |= bytes2(source, at + 48u + 2u * i) >> 12 << (4u * i);
    uint more = byte1(source, at + 32u + (k >> 1)) >> (4u * (k & 1u)) & 15u;
    code = byte1(source, at + k) | (more & 7u) << 8;
    scale = bytes2(source, at + 48u + 2u * (k >> 3)) >> (3u * (k >> 1 & 3u)) & 7u;
    down = (more & 8u) != 0u, d = half_at(bits);
  }
  float step = d * float(2u * scale + 1u) * 0.125, shift = down ? -129.0 : -127.0;
  a = step * (unpack_bytes(tables.words[kIq1At + 2u * code]) + shift);
  b = step * (unpack_bytes(tables.words[kIq1At + 2u * code + 1u]) + shift);
}

// The numbers of a unit of the row that begins at a byte of a source of weights.
void decode8(uint format, uint source, uint row, uint unit, out vec4 a, out vec4 b) {
  switch (format) {
    case kF32: {
      uint words = (row + 32u * unit) >> 2;
      a = uintBitsToFloat(uvec4(word_of(source, words), word_of(source, words + 1u), word_of(source, words + 2u),
                                word_of(source, words + 3u)));
      b = uintBitsToFloat(uvec4(word_of(source, words + 4u), word_of(source, words + 5u),
                                word_of(source, words + 6u), word_of(source, words + 7u)));
      return;
    }
    case kF16: case kBF16: {
      uint words = (row + 16u * unit) >> 2;
      uvec4 w = uvec4(word_of(source, words), word_of(source, words + 1u), word_of(source, words + 2u),
                      word_of(source, words + 3u));
      uint last = word_of(source, words + 4u);
      w = uvec4(bytes_of(w.x, w.y, row), bytes_of(w.y, w.z, row), bytes_of(w.z, w.w, row), bytes_of(w.w, last, row));
      if (format == kF16) {
        a = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)), b = vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w));
      } else {
        uvec4 low = w << 16, high = w & 0xFFFF0000u;
        a = uintBitsToFloat(uvec4(low.x, high.x, low.y, high.y));
        b = uintBitsToFloat(uvec4(low.z, high.z, low.w, high.w));
      }
      return;
    }
    case kQ8_0: {
      uint at = row + 34u * (unit >> 2), codes = at + 2u + 8u * (unit & 3u);
      float d = half1(source, at);
      a = d * signed_bytes(bytes4(source, codes)), b = d * signed_bytes(bytes4(source, codes + 4u));
      return;
    }
    case kQ4_0: case kQ4_1: case kQ5_0: case kQ5_1: case kIQ4_NL: case kMXFP4:
      of_32(format, source, row, unit, a, b);
      return;
    case kIQ2_XXS: case kIQ2_XS: case kIQ2_S: case kIQ3_XXS: case kIQ3_S:
      of_grids(format, source, row, unit, a, b);
      return;
    case kIQ1_S: case kIQ1_M:
      of_iq1(format, source, row, unit, a, b);
      return;
    case kNVFP4: {
      uint at = row + 36u * (unit >> 3), run = unit >> 1 & 3u;
      float d = 0.5 * uintBitsToFloat(tables.words[kE4M3At + byte1(source, at + run)]);
      uint v = word_at(source, at + 4u + 8u * run + 4u * (unit & 1u));
      a = d * by_table(kE2M1At, v), b = d * by_table(kE2M1At, v >> 4);
      return;
    }
  }
  of_256(format, source, row, unit, a, b);
}

// Numbers behind a row's end are none: of floats, whose rows may end within a unit.
vec4 within(vec4 v, uint column, uint columns) {
  return mix(vec4(0), v, lessThan(uvec4(0, 1, 2, 3) + column, uvec4(columns)));
}
vec4 four_within(uint at, uint column, uint columns) {
  vec4 v = vec4(0);
  for (uint i = 0; i < 4; ++i) v[i] = column + i < columns ? arena.numbers[at + i] : 0.0;
  return v;
}

#endif
