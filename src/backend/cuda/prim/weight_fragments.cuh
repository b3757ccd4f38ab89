// From packed blocks (host/format.h) to operands of matrix instructions: a thread takes the 32 numbers of one
// row and block from global memory and makes them halves, four pairs at a time.
//
// A matrix instruction sums over columns, and a sum does not care for their order as long as both operands
// have the same. So pairs come in the order in which nibbles lie: pair 4j + 0 is columns (4j, 4j + 2) of the
// block, + 1 is (4j + 1, 4j + 3), + 2 and + 3 the same 16 columns on. Activations are written in that order
// once (gemm/pack_tokens.cu), weights never move.
//
// Every type is affine in its code, (code - bias) * scale + offset, up to a table of 16 entries for four of
// them and grids for IQ1 to IQ3 (iq_points.cuh); a code becomes a half by being put under the exponent of
// 1024, which is exact, as is taking 1024 + bias away. So a weight is rounded once, scales of K-quants once
// more. Types differ by width of code at compile time (a family) and by their scales at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/host/device.h"
#include "backend/cuda/prim/codes.cuh"
#include "quant/types.h"

namespace sluice::backend::cuda {

enum class Family : uint8_t { Bits4, Bits5, Bits6, Bits8, Bits2And3, Table, Points, F16, Bf16, F32 };

constexpr bool is_float(Family family) {
  return family == Family::F16 || family == Family::Bf16 || family == Family::F32;
}

constexpr bool family_of(quant::Type type, Family& family) {
  using quant::Type;
  switch (type) {
    case Type::Q4_0:
    case Type::Q4_1:
    case Type::Q4_K: family = Family::Bits4; return true;
    case Type::Q5_0:
    case Type::Q5_1:
    case Type::Q5_K: family = Family::Bits5; return true;
    case Type::Q6_K: family = Family::Bits6; return true;
    case Type::Q8_0: family = Family::Bits8; return true;
    case Type::Q2_K:
    case Type::Q3_K: family = Family::Bits2And3; return true;
    case Type::IQ4_NL:
    case Type::IQ4_XS:
    case Type::MXFP4:
    case Type::NVFP4: family = Family::Table; return true;
    case Type::IQ2_XXS:
    case Type::IQ2_XS:
    case Type::IQ2_S:
    case Type::IQ3_XXS:
    case Type::IQ3_S:
    case Type::IQ1_S:
    case Type::IQ1_M: family = Family::Points; return true;
    case Type::F16: family = Family::F16; return true;
    case Type::BF16: family = Family::Bf16; return true;
    case Type::F32: family = Family::F32; return true;
    default: return false;
  }
}

namespace fragments {

__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ __half2 twice(float value) { return __float2half2_rn(value); }
__device__ __forceinline__ float low_half(uint32_t bits) { return __low2float(as_half2(bits)); }
__device__ __forceinline__ float high_half(uint32_t bits) { return __high2float(as_half2(bits)); }

/// A pair of bfloat16 as halves.
__device__ __forceinline__ uint32_t halves_of_bfloats(uint32_t bits) {
  return as_bits(__floats2half2_rn(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)));
}

/// Where packed weights lie: in device memory, or a copy of some rows in shared memory.
enum class Space : uint8_t { Global, Shared };

template <typename T, Space kSpace>
__device__ __forceinline__ T read(const uint8_t* at) {
  if constexpr (kSpace == Space::Shared) {
    return *reinterpret_cast<const T*>(at);
  } else {
    return __ldg(reinterpret_cast<const T*>(at));
  }
}
template <typename T, Space kSpace>
__device__ __forceinline__ uint32_t load(const uint8_t* at) {
  return static_cast<uint32_t>(read<T, kSpace>(at));
}

/// What the codes of a block become numbers with: columns 0..15 and 16..31.
struct Affine {
  __half2 bias, scale[2], offset[2];
};

__device__ __forceinline__ void set_all(Affine& a, float bias, float scale, float offset) {
  a.bias = twice(1024.0f + bias);
  a.scale[0] = a.scale[1] = twice(scale);
  a.offset[0] = a.offset[1] = twice(offset);
}

/// A pair of codes, each in the low bits of 16, to numbers.
__device__ __forceinline__ uint32_t number(uint32_t codes, const Affine& a, int half) {
  const __half2 exact = __hsub2(as_half2(codes | 0x64006400u), a.bias);
  return as_bits(__hfma2(exact, a.scale[half], a.offset[half]));
}

/// Bits of `mask` under the exponent of 1024, in one instruction.
__device__ __forceinline__ uint32_t under_1024(uint32_t bits, uint32_t mask) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(0x64006400u));
  return result;
}
/// The same into `codes`, which lie under it already.
__device__ __forceinline__ uint32_t under_1024_with(uint32_t codes, uint32_t bits, uint32_t mask) {
  return codes | bits & mask;
}
/// `bits` by so many places to the left, or to the right where negative; known at compile time.
__device__ __forceinline__ uint32_t moved(uint32_t bits, int places) {
  return places >= 0 ? bits << places : bits >> -places;
}
/// Two pairs of codes of six bits, their low four bits as in nibbles(), the upper two in `upper` from bit
/// `first` of every 16 on: of the first pair's in upper[0], of the second's in upper[1].
__device__ __forceinline__ void sixes(uint32_t bits, const uint32_t (&upper)[2], int first, const Affine& a,
                                      uint32_t& low, uint32_t& high) {
  const uint32_t q = under_1024_with(under_1024(bits, 0x000F000Fu), moved(upper[0], 4 - first), 0x00300030u);
  const uint32_t q16 =
      under_1024_with(under_1024(bits, 0x00F000F0u), moved(upper[1], 8 - first), 0x03000300u);
  const __half2 exact = __hsub2(as_half2(q), a.bias);
  const __half2 shift = __hsub2(__float2half2_rn(960.0f), a.bias);  // -64 - bias
  const __half2 above = __hfma2(as_half2(q16), __float2half2_rn(0x1p-4f), shift);
  low = as_bits(__hfma2(exact, a.scale[0], a.offset[0]));
  high = as_bits(__hfma2(above, a.scale[1], a.offset[1]));
}
/// Two pairs of nibbles, in the low and the high four bits of every other byte, to numbers: 1024 + 16 q,
/// where q lies high, is divided before the bias is taken away, both exactly.
__device__ __forceinline__ void nibbles(uint32_t bits, const Affine& a, uint32_t& low, uint32_t& high) {
  const __half2 exact = __hsub2(as_half2(under_1024(bits, 0x000F000Fu)), a.bias);
  const __half2 sixteenth = __float2half2_rn(0x1p-4f);
  const __half2 shift = __hsub2(__float2half2_rn(960.0f), a.bias);  // -64 - bias
  const __half2 upper = __hfma2(as_half2(under_1024(bits, 0x00F000F0u)), sixteenth, shift);
  low = as_bits(__hfma2(exact, a.scale[0], a.offset[0]));
  high = as_bits(__hfma2(upper, a.scale[1], a.offset[1]));
}

}  // namespace fragments

/// One row's block of 32 in registers, as loaded (so that loads can be in flight), and as numbers.
template <Family kFamily>
struct Block {
  static constexpr int kCodeWords = kFamily == Family::Bits8                                    ? 8
                                    : kFamily == Family::Bits2And3 || kFamily == Family::Points ? 2
                                    : is_float(kFamily)                                         ? 16
                                                                                                : 4;
  uint32_t codes[kCodeWords];
  uint32_t high[2];
  uint32_t scale, super;

  /// Block `block` of flat row `row`; zeroes where it is not there.
  template <fragments::Space kSpace = fragments::Space::Global>
  __device__ __forceinline__ void load(const Matrix& m, int64_t row, int block, bool there) {
    using namespace fragments;
    using quant::Type;
#pragma unroll
    for (uint32_t& word : codes) word = 0;
    high[0] = high[1] = scale = super = 0;
    if (!there) return;
    if constexpr (kFamily == Family::F16 || kFamily == Family::Bf16) return load_halves(m, row, block);
    if constexpr (kFamily == Family::F32) return load_singles(m, row, block);
    const auto type = m.type;
    const int64_t b = row * (m.columns / 32) + block;
    if constexpr (kFamily == Family::Points) return load_points<kSpace>(m, b);
    if constexpr (kCodeWords == 2) {
      const uint2 v = read<uint2, kSpace>(m.codes + b * 8);
      codes[0] = v.x, codes[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < kCodeWords; i += 4) {
        const uint4 v = read<uint4, kSpace>(m.codes + b * (4 * kCodeWords) + 4 * i);
        codes[i] = v.x, codes[i + 1] = v.y, codes[i + 2] = v.z, codes[i + 3] = v.w;
      }
    }
    if constexpr (kFamily == Family::Bits4 || kFamily == Family::Bits5) {
      if constexpr (kFamily == Family::Bits5) high[0] = fragments::load<uint32_t, kSpace>(m.high + b * 4);
      if (type == Type::Q4_1 || type == Type::Q5_1) {
        scale = fragments::load<uint32_t, kSpace>(m.scale + b * 4);
      } else {
        scale = fragments::load<uint16_t, kSpace>(m.scale + b * 2);
        if (type == Type::Q4_K || type == Type::Q5_K)
          super = fragments::load<uint32_t, kSpace>(m.super + b / 8 * 4);
      }
    } else if constexpr (kFamily == Family::Bits6) {
      const uint2 v = read<uint2, kSpace>(m.high + b * 8);
      high[0] = v.x, high[1] = v.y;
      scale = fragments::load<uint16_t, kSpace>(m.scale + b * 2);
      super = fragments::load<uint16_t, kSpace>(m.super + b / 8 * 2);
    } else if constexpr (kFamily == Family::Bits8) {
      scale = fragments::load<uint16_t, kSpace>(m.scale + b * 2);
    } else if constexpr (kFamily == Family::Bits2And3) {
      if (type == Type::Q2_K) {
        scale = fragments::load<uint16_t, kSpace>(m.scale + b * 2);
        super = fragments::load<uint32_t, kSpace>(m.super + b / 8 * 4);
      } else {
        high[0] = fragments::load<uint32_t, kSpace>(m.high + b * 4);
        scale = fragments::load<uint8_t, kSpace>(m.scale + b / 8 * 12 + b % 8);
        high[1] = fragments::load<uint32_t, kSpace>(m.scale + b / 8 * 12 + 8) >> (4 * (b % 8));
        super = fragments::load<uint16_t, kSpace>(m.super + b / 8 * 2);
      }
    } else if constexpr (kFamily == Family::Table) {
      if (type == Type::IQ4_NL || type == Type::NVFP4) {
        scale = fragments::load<uint16_t, kSpace>(m.scale + b * 2);
      } else {
        scale = fragments::load<uint8_t, kSpace>(m.scale + b);
        if (type == Type::IQ4_XS) super = fragments::load<uint16_t, kSpace>(m.super + b / 8 * 2);
      }
    }
  }

  __device__ __forceinline__ fragments::Affine affine(const Matrix& m) const {
    using namespace fragments;
    using quant::Type;
    const auto type = m.type;
    Affine a{};
    const float low = low_half(scale);
    if constexpr (kFamily == Family::Bits4 || kFamily == Family::Bits5) {
      constexpr float kMiddle = kFamily == Family::Bits4 ? 8 : 16;
      if (type == Type::Q4_0 || type == Type::Q5_0) {
        set_all(a, kMiddle, low, 0);
      } else if (type == Type::Q4_1 || type == Type::Q5_1) {
        set_all(a, 0, low, high_half(scale));
      } else {
        set_all(a, 0, low_half(super) * static_cast<float>(scale & 255),
                -high_half(super) * static_cast<float>(scale >> 8));
      }
    } else if constexpr (kFamily == Family::Bits6) {
      set_all(a, 32, 0, 0);
      // Both bytes, 128 more than they are, under 1024; products of halves are rounded once.
      const __half2 signed_bytes =
          __hsub2(as_half2(__byte_perm(scale ^ 0x8080u, 0x64u, 0x4140)), twice(1152.0f));
      const __half2 both = __hmul2(signed_bytes, __low2half2(as_half2(super)));
      a.scale[0] = __low2half2(both), a.scale[1] = __high2half2(both);
    } else if constexpr (kFamily == Family::Bits8) {
      set_all(a, 128, low, 0);
    } else if constexpr (kFamily == Family::Bits2And3) {
      const float d = low_half(super);
      if (type == Type::Q2_K) {
        const float dmin = high_half(super);
        set_all(a, 0, d * static_cast<float>(scale & 15), -dmin * static_cast<float>(scale >> 4 & 15));
        a.scale[1] = twice(d * static_cast<float>(scale >> 8 & 15));
        a.offset[1] = twice(-dmin * static_cast<float>(scale >> 12));
      } else {
        const auto value = [&](uint32_t nibble, uint32_t upper) {
          return d * static_cast<float>(static_cast<int>(nibble & 15 | (upper & 3) << 4) - 32);
        };
        set_all(a, 4, value(scale, high[1]), 0);
        a.scale[1] = twice(value(scale >> 4, high[1] >> 2));
      }
    } else if constexpr (kFamily == Family::Table) {
      if (type == Type::IQ4_NL) {
        set_all(a, 128, low, 0);
      } else if (type == Type::NVFP4) {
        set_all(a, 128, half_of_e4m3(scale & 255), 0);
        a.scale[1] = twice(half_of_e4m3(scale >> 8));
      } else if (type == Type::IQ4_XS) {
        set_all(a, 128, low_half(super) * static_cast<float>(static_cast<int8_t>(scale)), 0);
      } else {  // half of 2^(e - 127); what is too small for a half is too small for a float of its
                // neighbours
        set_all(a, 128, scale < 2 ? 0.0f : __uint_as_float((scale - 1) << 23), 0);
      }
    } else if constexpr (kFamily == Family::Points) {
      with_points_type(type, [&]<Type T>() {
        const Scales scales = unpack_scales<T>(raw<T>());
        set_all(a, 128, scales.multiplier[0], 0);
        a.scale[1] = twice(scales.multiplier[1]);
      });
    }
    return a;
  }

  /// Pairs 4j .. 4j + 3. j is known at compile time wherever this is unrolled.
  __device__ __forceinline__ void pairs(const Matrix& m, const fragments::Affine& a, int j,
                                        uint32_t (&out)[4]) const {
    using namespace fragments;
    if constexpr (is_float(kFamily)) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // columns 4j .. 4j + 3 lie in two words, those 16 on in two others
        uint32_t first = codes[2 * j + 8 * i], second = codes[2 * j + 8 * i + 1];
        if constexpr (kFamily == Family::Bf16)
          first = halves_of_bfloats(first), second = halves_of_bfloats(second);
        out[2 * i] = __byte_perm(first, second, 0x5410);
        out[2 * i + 1] = __byte_perm(first, second, 0x7632);
      }
    } else if constexpr (kFamily == Family::Bits8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t word = codes[j + 4 * i] ^ 0x80808080u;
        out[2 * i] = number(word & 0x00FF00FFu, a, i);
        out[2 * i + 1] = number(word >> 8 & 0x00FF00FFu, a, i);
      }
    } else if constexpr (kFamily == Family::Table) {
      table_pairs(m, a, j, out);
    } else if constexpr (kFamily == Family::Points) {
      with_points_type(m.type, [&]<quant::Type T>() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = points::word<T>(codes, high[0], scale, j + 4 * i) ^ 0x80808080u;
          out[2 * i] = number(word & 0x00FF00FFu, a, i);
          out[2 * i + 1] = number(word >> 8 & 0x00FF00FFu, a, i);
        }
      });
    } else if constexpr (kFamily == Family::Bits2And3) {
      const uint32_t word = codes[j & 1] >> (2 * (j >> 1));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t third = high[0] >> (j + 4 * i);  // zero for Q2_K
        out[2 * i] = number(word >> (4 * i) & 0x00030003u | (third & 0x00010001u) << 2, a, i);
        out[2 * i + 1] = number(word >> (4 * i + 8) & 0x00030003u | (third >> 8 & 0x00010001u) << 2, a, i);
      }
    } else if constexpr (kFamily == Family::Bits4) {
      nibbles(codes[j], a, out[0], out[2]);
      nibbles(codes[j] >> 8, a, out[1], out[3]);
    } else if constexpr (kFamily == Family::Bits6) {
      sixes(codes[j], high, 2 * j, a, out[0], out[2]);
      sixes(codes[j] >> 8, high, 2 * j + 8, a, out[1], out[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t even = codes[j] >> (4 * i) & 0x000F000Fu, odd = codes[j] >> (4 * i + 8) & 0x000F000Fu;
        if constexpr (kFamily == Family::Bits5) {
          const uint32_t fifth = high[0] >> (j + 4 * i);
          even |= (fifth & 0x00010001u) << 4, odd |= (fifth >> 8 & 0x00010001u) << 4;
        }
        out[2 * i] = number(even, a, i);
        out[2 * i + 1] = number(odd, a, i);
      }
    }
  }

 private:
  template <quant::Type T>
  __device__ __forceinline__ Raw<T> raw() const {
    Raw<T> block{};
#pragma unroll
    for (int i = 0; i < Traits<T>::codes_words; ++i) block.codes[i] = codes[i];
    block.high[0] = high[0], block.scale = scale, block.super = super;
    return block;
  }
  template <fragments::Space kSpace>
  __device__ __forceinline__ void load_points(const Matrix& m, int64_t block) {
    using From = std::conditional_t<kSpace == fragments::Space::Shared, FromShared, FromGlobal>;
    with_points_type(m.type, [&]<quant::Type T>() {
      const Raw<T> loaded = load_block<T>(planes_from(m), block, From{});
#pragma unroll
      for (int i = 0; i < Traits<T>::codes_words; ++i) codes[i] = loaded.codes[i];
      high[0] = loaded.high[0], scale = loaded.scale, super = loaded.super;
    });
  }
  /// 16 columns from nibbles by table: bytes are looked up eight codes at a time, four a permutation.
  __device__ __forceinline__ void table_pairs(const Matrix& m, const fragments::Affine& a, int j,
                                              uint32_t (&out)[4]) const {
    using namespace fragments;
    const bool e2m1 = m.type == quant::Type::MXFP4 || m.type == quant::Type::NVFP4;
    // Entries of quant/codecs.h, 128 more than they are, four to a word: the steps of IQ4_NL, doubled E2M1
    // floats.
    const uint32_t t0 = e2m1 ? 0x83828180u : 0x3F2D1801u, t1 = e2m1 ? 0x8C888684u : 0x766A5D4Fu;
    const uint32_t t2 = e2m1 ? 0x7D7E7F80u : 0xA6998D81u, t3 = e2m1 ? 0x74787A7Cu : 0xF1D9C5B5u;
    uint32_t bytes[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t four = codes[j] >> (16 * i), index = four & 0x7777u;
      bytes[i] = __byte_perm(__byte_perm(t0, t1, index), __byte_perm(t2, t3, index),
                             0x3210u | (four & 0x8888u) >> 1);
    }
    // bytes[0]: low and high nibble of byte 0, of byte 1; bytes[1] those of bytes 2 and 3
    out[0] = number(__byte_perm(bytes[0], bytes[1], 0x0400) & 0x00FF00FFu, a, 0);
    out[1] = number(__byte_perm(bytes[0], bytes[1], 0x0602) & 0x00FF00FFu, a, 0);
    out[2] = number(__byte_perm(bytes[0], bytes[1], 0x0501) & 0x00FF00FFu, a, 1);
    out[3] = number(__byte_perm(bytes[0], bytes[1], 0x0703) & 0x00FF00FFu, a, 1);
  }

  /// F16 and BF16 stay as they are until they are used: loads stay in flight.
  __device__ void load_halves(const Matrix& m, int64_t row, int block) {
    const int64_t first = row * m.columns + int64_t{block} * 32;
    const int count = min(32, m.columns - block * 32);
    if (m.columns % 8 == 0 && count == 32) {
#pragma unroll
      for (int i = 0; i < kCodeWords / 4; ++i) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(m.codes + first * 2) + i);
        codes[4 * i] = v.x, codes[4 * i + 1] = v.y, codes[4 * i + 2] = v.z, codes[4 * i + 3] = v.w;
      }
      return;
    }
    const auto bits = [&](int i) -> uint32_t {
      return i < count ? __ldg(reinterpret_cast<const uint16_t*>(m.codes) + first + i) : 0;
    };
#pragma unroll
    for (int i = 0; i < kCodeWords; ++i) codes[i] = bits(2 * i) | bits(2 * i + 1) << 16;
  }
  /// F32 becomes halves.
  __device__ void load_singles(const Matrix& m, int64_t row, int block) {
    const float* const first =
        reinterpret_cast<const float*>(m.codes) + row * m.columns + int64_t{block} * 32;
    const int count = min(32, m.columns - block * 32);
    const auto pair = [](float a, float b) { return fragments::as_bits(__floats2half2_rn(a, b)); };
    if (m.columns % 4 == 0 && count == 32) {
#pragma unroll
      for (int i = 0; i < kCodeWords / 2; ++i) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(first) + i);
        codes[2 * i] = pair(v.x, v.y), codes[2 * i + 1] = pair(v.z, v.w);
      }
      return;
    }
    const auto value = [&](int i) { return i < count ? __ldg(first + i) : 0.0f; };
#pragma unroll
    for (int i = 0; i < kCodeWords; ++i) codes[i] = pair(value(2 * i), value(2 * i + 1));
  }
};

/// Blocks of 32 that a row of this matrix has, a last one that is not full included.
__device__ __forceinline__ int blocks_of(const Matrix& m) { return (m.columns + 31) / 32; }

/// Steps 4 half .. 4 half + 3 of a chunk as first operands, from the blocks of this thread's two rows.
template <Family kFamily>
__device__ __forceinline__ void unpack(const Matrix& w, const Block<kFamily> (&block)[2],
                                       const fragments::Affine (&affine)[2], int half, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t x[4], y[4];
    block[0].pairs(w, affine[0], 2 * half + j, x);
    block[1].pairs(w, affine[1], 2 * half + j, y);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * j + i][0] = x[2 * i], a[2 * j + i][1] = y[2 * i];
      a[2 * j + i][2] = x[2 * i + 1], a[2 * j + i][3] = y[2 * i + 1];
    }
  }
}

}  // namespace sluice::backend::cuda
