// One block of 32 columns of a weight of any blocked type, from packed planes (host/format.h) to integer
// codes and the floats that scale them. Knows formats; nothing of ops.
//
// A number is  multiplier * (code - offset) + addend,  multiplier and addend for columns 0..15 and 16..31.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/host/device.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/prim/iq_points.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {

using quant::Type;

/// Codes of a block as bytes: word i of low holds columns 4i..4i+3, of high 16+4i..16+4i+3.
struct Codes {
  int low[4], high[4];
};

struct Scales {
  float multiplier[2];
  float addend[2];
};

/// What is fixed about a type. offset: what is subtracted from a code. halves: columns 0..15 and 16..31 have
/// multipliers of their own. adds: there are addends.
template <Type T>
struct Traits {
  static constexpr int codes_bytes = find_format(T)->codes, high_bytes = find_format(T)->high;
  static constexpr int scale_bytes = find_format(T)->scale, super_bytes = find_format(T)->super;
  static constexpr int codes_words = codes_bytes / 4, high_words = (high_bytes + 3) / 4;
  static constexpr int offset = T == Type::Q4_0   ? 8
                                : T == Type::Q5_0 ? 16
                                : T == Type::Q6_K ? 32
                                : T == Type::Q3_K ? 4
                                                  : 0;
  static constexpr bool halves = T == Type::Q6_K || T == Type::Q3_K || T == Type::Q2_K || T == Type::NVFP4 ||
                                 T == Type::IQ2_XS || T == Type::IQ2_S || T == Type::IQ1_M;
  static constexpr bool adds =
      T == Type::Q4_1 || T == Type::Q5_1 || T == Type::Q4_K || T == Type::Q5_K || T == Type::Q2_K;
};

/// The bytes of a block as loaded, before anything is computed: several are in flight at once.
template <Type T>
struct Raw {
  uint32_t codes[Traits<T>::codes_words];
  uint32_t high[Traits<T>::high_words > 0 ? Traits<T>::high_words : 1];
  uint32_t scale, super;
};

/// Where a weight's planes lie.
struct CodePlanes {
  const uint8_t *codes, *high, *scale, *super;
};
SLUICE_BOTH inline CodePlanes planes_from(const Matrix& m) { return {m.codes, m.high, m.scale, m.super}; }

/// How load_block reads: weights in global memory.
struct FromGlobal {
  template <typename Word>
  __device__ auto operator()(const Word* at) const {
    return load_weight(at);
  }
};
/// Planes that were copied to shared memory.
struct FromShared {
  __device__ uint4 operator()(const uint4* at) const { return *at; }
  __device__ uint2 operator()(const uint2* at) const { return *at; }
  template <typename Word>
  __device__ uint32_t operator()(const Word* at) const {
    return *at;
  }
};

template <Type T, typename From = FromGlobal>
__device__ inline Raw<T> load_block(const CodePlanes& m, int64_t block, From load = {}) {
  Raw<T> raw{};
  if constexpr (Traits<T>::codes_bytes == 8) {
    const uint2 v = load(reinterpret_cast<const uint2*>(m.codes) + block);
    raw.codes[0] = v.x, raw.codes[1] = v.y;
  } else if constexpr (Traits<T>::codes_bytes == 4) {
    raw.codes[0] = load(reinterpret_cast<const uint32_t*>(m.codes) + block);
  } else {
    constexpr int kLoads = Traits<T>::codes_bytes / 16;
    for (int i = 0; i < kLoads; ++i) {
      const uint4 v = load(reinterpret_cast<const uint4*>(m.codes) + block * kLoads + i);
      raw.codes[4 * i] = v.x, raw.codes[4 * i + 1] = v.y;
      raw.codes[4 * i + 2] = v.z, raw.codes[4 * i + 3] = v.w;
    }
  }
  if constexpr (Traits<T>::high_bytes == 1) raw.high[0] = load(m.high + block);
  if constexpr (Traits<T>::high_bytes == 2)
    raw.high[0] = load(reinterpret_cast<const uint16_t*>(m.high) + block);
  if constexpr (Traits<T>::high_bytes == 4)
    raw.high[0] = load(reinterpret_cast<const uint32_t*>(m.high) + block);
  if constexpr (Traits<T>::high_bytes == 8) {
    const uint2 v = load(reinterpret_cast<const uint2*>(m.high) + block);
    raw.high[0] = v.x, raw.high[1] = v.y;
  }
  if constexpr (Traits<T>::scale_bytes == 4) {
    raw.scale = load(reinterpret_cast<const uint32_t*>(m.scale) + block);
  } else if constexpr (Traits<T>::scale_bytes == 2) {
    raw.scale = load(reinterpret_cast<const uint16_t*>(m.scale) + block);
  } else if constexpr (Traits<T>::scale_bytes == 1) {
    raw.scale = load(m.scale + block);
  } else if constexpr (T == Type::Q3_K) {
    // Two scales of six bits: a byte of low nibbles, and four top bits of a word.
    const uint8_t* group = m.scale + block / 8 * 12;
    raw.scale = group[block % 8] | (uint32_t{group[8 + block % 8 / 2]} >> (4 * (block % 2)) & 15u) << 8;
  }
  if constexpr (Traits<T>::super_bytes == 4) {
    raw.super = load(reinterpret_cast<const uint32_t*>(m.super) + block / 8);
  } else if constexpr (Traits<T>::super_bytes == 2) {
    raw.super = load(reinterpret_cast<const uint16_t*>(m.super) + block / 8);
  }
  return raw;
}

/// Eight nibbles through a table of 16 bytes (four words): the four low ones, and the four high ones.
__device__ inline void look_up(uint32_t nibbles, const uint32_t (&table)[4], int& low, int& high) {
  const uint32_t first = nibbles & 0x77777777u;
  // Of each nibble: the entry of either half of the table, then the half that its top bit says.
  const uint32_t half = 0x32103210u | (nibbles & 0x88888888u) >> 1;
  const uint32_t a =
      __byte_perm(__byte_perm(table[0], table[1], first), __byte_perm(table[2], table[3], first), half);
  const uint32_t b = __byte_perm(__byte_perm(table[0], table[1], first >> 16),
                                 __byte_perm(table[2], table[3], first >> 16), half >> 16);
  low = static_cast<int>(__byte_perm(a, b, 0x6420));
  high = static_cast<int>(__byte_perm(a, b, 0x7531));
}

template <Type T>
__device__ inline Codes unpack_codes(const Raw<T>& raw) {
  Codes c;
  if constexpr (T == Type::Q8_0) {
    for (int i = 0; i < 4; ++i)
      c.low[i] = static_cast<int>(raw.codes[i]), c.high[i] = static_cast<int>(raw.codes[4 + i]);
  } else if constexpr (T == Type::Q2_K || T == Type::Q3_K) {
    for (int i = 0; i < 8; ++i) {
      uint32_t word = raw.codes[i % 2] >> (2 * (i / 2)) & 0x03030303u;
      if constexpr (T == Type::Q3_K) word |= (raw.high[0] >> i & 0x01010101u) << 2;
      (i < 4 ? c.low[i] : c.high[i - 4]) = static_cast<int>(word);
    }
  } else if constexpr (names_points(T)) {
    for (int i = 0; i < 8; ++i)
      (i < 4 ? c.low[i] : c.high[i - 4]) =
          static_cast<int>(points::word<T>(raw.codes, raw.high[0], raw.scale, i));
  } else if constexpr (T == Type::IQ4_NL || T == Type::IQ4_XS || T == Type::MXFP4 || T == Type::NVFP4) {
    // -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113; or E2M1 doubled.
    constexpr bool kFour = T == Type::MXFP4 || T == Type::NVFP4;
    const uint32_t table[4] = {kFour ? 0x03020100u : 0xbfad9881u, kFour ? 0x0c080604u : 0xf6eaddcfu,
                               kFour ? 0xfdfeff00u : 0x26190d01u, kFour ? 0xf4f8fafcu : 0x71594535u};
    for (int i = 0; i < 4; ++i) look_up(raw.codes[i], table, c.low[i], c.high[i]);
  } else {
    for (int i = 0; i < 4; ++i) {
      uint32_t low = raw.codes[i] & 0x0f0f0f0fu, high = raw.codes[i] >> 4 & 0x0f0f0f0fu;
      if constexpr (Traits<T>::high_bytes == 4) {
        low |= (raw.high[0] >> i & 0x01010101u) << 4;
        high |= (raw.high[0] >> (4 + i) & 0x01010101u) << 4;
      } else if constexpr (Traits<T>::high_bytes == 8) {
        low |= (raw.high[0] >> (2 * i) & 0x03030303u) << 4;
        high |= (raw.high[1] >> (2 * i) & 0x03030303u) << 4;
      }
      c.low[i] = static_cast<int>(low), c.high[i] = static_cast<int>(high);
    }
  }
  return c;
}

__device__ inline float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/// Half of an E4M3 float without a sign, which E2M1 floats that are doubled are multiplied with; all ones are
/// no number and count as nothing. Half floats have as many bits of exponent more as they are further from
/// their bias.
__device__ inline float half_of_e4m3(uint32_t code) {
  return (code & 127u) == 127u ? 0.0f : half_bits((code & 127u) << 7) * 128.0f;
}

template <Type T>
__device__ inline Scales unpack_scales(const Raw<T>& raw) {
  Scales s{};
  const float low = half_bits(raw.scale & 0xffff);
  if constexpr (T == Type::Q4_1 || T == Type::Q5_1) {
    s.multiplier[0] = low, s.addend[0] = half_bits(raw.scale >> 16);
  } else if constexpr (T == Type::MXFP4) {
    // Half of a power of two; half of 2^-127 and of 2^-126 are subnormal.
    s.multiplier[0] = __uint_as_float(raw.scale < 2 ? 0x00200000u << raw.scale : (raw.scale - 1) << 23);
  } else if constexpr (T == Type::NVFP4) {
    s.multiplier[0] = half_of_e4m3(raw.scale & 255), s.multiplier[1] = half_of_e4m3(raw.scale >> 8);
  } else if constexpr (names_points(T)) {
    const float d = half_bits(raw.super);
    s.multiplier[0] = d * points::scale_of<T>(raw.codes, raw.high[0], raw.scale, 0);
    if constexpr (Traits<T>::halves)
      s.multiplier[1] = d * points::scale_of<T>(raw.codes, raw.high[0], raw.scale, 1);
  } else if constexpr (T == Type::IQ4_XS) {
    s.multiplier[0] = half_bits(raw.super) * static_cast<float>(static_cast<int8_t>(raw.scale));
  } else if constexpr (T == Type::Q4_K || T == Type::Q5_K) {
    s.multiplier[0] = half_bits(raw.super & 0xffff) * static_cast<float>(raw.scale & 255);
    s.addend[0] = -half_bits(raw.super >> 16) * static_cast<float>(raw.scale >> 8);
  } else if constexpr (T == Type::Q6_K) {
    s.multiplier[0] = half_bits(raw.super) * static_cast<float>(static_cast<int8_t>(raw.scale & 255));
    s.multiplier[1] = half_bits(raw.super) * static_cast<float>(static_cast<int8_t>(raw.scale >> 8));
  } else if constexpr (T == Type::Q3_K) {
    const uint32_t first = (raw.scale & 15) | (raw.scale >> 8 & 3) << 4;
    const uint32_t second = (raw.scale >> 4 & 15) | (raw.scale >> 10 & 3) << 4;
    s.multiplier[0] = half_bits(raw.super) * static_cast<float>(static_cast<int>(first) - 32);
    s.multiplier[1] = half_bits(raw.super) * static_cast<float>(static_cast<int>(second) - 32);
  } else if constexpr (T == Type::Q2_K) {
    const float d = half_bits(raw.super & 0xffff), dmin = half_bits(raw.super >> 16);
    s.multiplier[0] = d * static_cast<float>(raw.scale & 15),
    s.addend[0] = -dmin * static_cast<float>(raw.scale >> 4 & 15);
    s.multiplier[1] = d * static_cast<float>(raw.scale >> 8 & 15),
    s.addend[1] = -dmin * static_cast<float>(raw.scale >> 12);
  } else {
    s.multiplier[0] = low;
  }
  if constexpr (!Traits<T>::halves) s.multiplier[1] = s.multiplier[0], s.addend[1] = s.addend[0];
  return s;
}

/// Column c (0..31) of a block.
template <Type T>
__device__ inline float number(const Codes& codes, const Scales& scales, int c) {
  const int half = c / 16, word = half == 0 ? codes.low[c / 4] : codes.high[c / 4 - 4];
  const int shifted = word >> (8 * (c % 4));
  const int code = static_cast<int8_t>(shifted & 255) - Traits<T>::offset;
  return scales.multiplier[half] * static_cast<float>(code) + scales.addend[half];
}

/// Calls visit.template operator()<T>() for the blocked type `type`.
template <typename Visit>
__device__ inline void with_blocked_type(Type type, Visit&& visit) {
  switch (type) {
    case Type::Q4_0: return visit.template operator()<Type::Q4_0>();
    case Type::Q4_1: return visit.template operator()<Type::Q4_1>();
    case Type::Q5_0: return visit.template operator()<Type::Q5_0>();
    case Type::Q5_1: return visit.template operator()<Type::Q5_1>();
    case Type::Q8_0: return visit.template operator()<Type::Q8_0>();
    case Type::Q2_K: return visit.template operator()<Type::Q2_K>();
    case Type::Q3_K: return visit.template operator()<Type::Q3_K>();
    case Type::Q4_K: return visit.template operator()<Type::Q4_K>();
    case Type::Q5_K: return visit.template operator()<Type::Q5_K>();
    case Type::Q6_K: return visit.template operator()<Type::Q6_K>();
    case Type::IQ4_NL: return visit.template operator()<Type::IQ4_NL>();
    case Type::IQ4_XS: return visit.template operator()<Type::IQ4_XS>();
    case Type::MXFP4: return visit.template operator()<Type::MXFP4>();
    case Type::NVFP4: return visit.template operator()<Type::NVFP4>();
    case Type::IQ2_XXS: return visit.template operator()<Type::IQ2_XXS>();
    case Type::IQ2_XS: return visit.template operator()<Type::IQ2_XS>();
    case Type::IQ2_S: return visit.template operator()<Type::IQ2_S>();
    case Type::IQ3_XXS: return visit.template operator()<Type::IQ3_XXS>();
    case Type::IQ3_S: return visit.template operator()<Type::IQ3_S>();
    case Type::IQ1_S: return visit.template operator()<Type::IQ1_S>();
    case Type::IQ1_M: return visit.template operator()<Type::IQ1_M>();
    default: return;
  }
}

/// The same for the types that name points of a grid.
template <typename Visit>
__device__ inline void with_points_type(Type type, Visit&& visit) {
  switch (type) {
    case Type::IQ2_XXS: return visit.template operator()<Type::IQ2_XXS>();
    case Type::IQ2_XS: return visit.template operator()<Type::IQ2_XS>();
    case Type::IQ2_S: return visit.template operator()<Type::IQ2_S>();
    case Type::IQ3_XXS: return visit.template operator()<Type::IQ3_XXS>();
    case Type::IQ3_S: return visit.template operator()<Type::IQ3_S>();
    case Type::IQ1_S: return visit.template operator()<Type::IQ1_S>();
    case Type::IQ1_M: return visit.template operator()<Type::IQ1_M>();
    default: return;
  }
}

/// A number of a float type at `index` of a plane.
__device__ inline float float_number(Type type, const uint8_t* plane, int64_t index) {
  if (type == Type::F32) return __ldg(reinterpret_cast<const float*>(plane) + index);
  const uint32_t bits = __ldg(reinterpret_cast<const uint16_t*>(plane) + index);
  return type == Type::F16 ? half_bits(bits) : __uint_as_float(bits << 16);
}

__device__ inline bool is_float(Type type) {
  return type == Type::F32 || type == Type::F16 || type == Type::BF16;
}

}  // namespace sluice::backend::cuda
