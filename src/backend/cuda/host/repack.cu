// A thread takes one block of the file's format, byte by byte: it runs once a load, and faster than the file
// arrives.
#include "backend/cuda/host/repack.h"

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/format.h"

namespace sluice::backend::cuda {
namespace {

using quant::Type;

/// The four bytes of `from` on, at any address.
__device__ inline uint32_t word(const uint8_t* from) {
  return from[0] | uint32_t{from[1]} << 8 | uint32_t{from[2]} << 16 | uint32_t{from[3]} << 24;
}

__device__ inline void copy(const uint8_t* from, uint8_t* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}

/// Bit c of fifth (column c) to bit j of byte b, where c = 4j + b.
__device__ inline uint32_t spread(uint32_t bits) {
  uint32_t out = 0;
  for (int c = 0; c < 32; ++c) out |= (bits >> c & 1u) << (8 * (c % 4) + c / 4);
  return out;
}

__device__ inline void store_word(uint8_t* to, uint32_t value) { *reinterpret_cast<uint32_t*>(to) = value; }

/// Types of 32 columns: scale_bytes of scales, then high_bytes of fifth bits, then codes.
__device__ void small_block(const uint8_t* raw, const Format& f, int64_t block, const Planes& p) {
  copy(raw, p.scale + block * f.scale, f.scale);
  if (f.high != 0) store_word(p.high + block * 4, spread(word(raw + f.scale)));
  copy(raw + f.scale + f.high, p.codes + block * f.codes, f.codes);
}

/// 16 bytes of codes of 32 columns out of the 32 bytes whose low or high nibbles they are.
__device__ void nibbles(const uint8_t* from, int shift, uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<uint8_t>((from[i] >> shift & 15) | (from[16 + i] >> shift & 15) << 4);
  }
}

/// Q4_K and Q5_K: eight groups of 32 under 6-bit scales and minimums.
__device__ void k_scales(const uint8_t* packed, int g, uint8_t* to) {
  if (g < 4) {
    to[0] = packed[g] & 63, to[1] = packed[g + 4] & 63;
  } else {
    to[0] = static_cast<uint8_t>((packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4);
    to[1] = static_cast<uint8_t>((packed[g + 4] >> 4) | (packed[g] >> 6) << 4);
  }
}

__device__ void q4_k(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 4, 4);
  for (int g = 0; g < 8; ++g) {
    k_scales(raw + 4, g, p.scale + (super * 8 + g) * 2);
    nibbles(raw + 16 + 32 * (g / 2), 4 * (g % 2), p.codes + (super * 8 + g) * 16);
  }
}

__device__ void q5_k(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 4, 4);
  for (int g = 0; g < 8; ++g) {
    k_scales(raw + 4, g, p.scale + (super * 8 + g) * 2);
    nibbles(raw + 48 + 32 * (g / 2), 4 * (g % 2), p.codes + (super * 8 + g) * 16);
    uint32_t fifth = 0;
    for (int c = 0; c < 32; ++c) fifth |= (uint32_t{raw[16 + c]} >> g & 1u) << c;
    store_word(p.high + (super * 8 + g) * 4, spread(fifth));
  }
}

__device__ void q6_k(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw + 208, p.super + super * 2, 2);
  copy(raw + 192, p.scale + super * 16, 16);
  for (int g = 0; g < 8; ++g) {  // 32 columns: group k of a half of 128
    const int half = g / 4, k = g % 4;
    nibbles(raw + 64 * half + 32 * (k % 2), 4 * (k / 2), p.codes + (super * 8 + g) * 16);
    const uint8_t* pairs = raw + 128 + 32 * half;
    for (int w = 0; w < 2; ++w) {
      uint32_t bits = 0;
      for (int c = 0; c < 16; ++c)
        bits |= (uint32_t{pairs[16 * w + c]} >> (2 * k) & 3u) << (8 * (c % 4) + 2 * (c / 4));
      store_word(p.high + (super * 8 + g) * 8 + 4 * w, bits);
    }
  }
}

/// Two bits of each of 32 columns: byte i holds columns i, 8 + i, 16 + i, 24 + i.
__device__ void pairs(const uint8_t* from, int shift, uint8_t* to) {
  for (int i = 0; i < 8; ++i) {
    int byte = 0;
    for (int k = 0; k < 4; ++k) byte |= (from[8 * k + i] >> shift & 3) << (2 * k);
    to[i] = static_cast<uint8_t>(byte);
  }
}

__device__ void q2_k(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw + 80, p.super + super * 4, 4);
  copy(raw, p.scale + super * 16, 16);
  for (int g = 0; g < 8; ++g) pairs(raw + 16 + 32 * (g / 4), 2 * (g % 4), p.codes + (super * 8 + g) * 8);
}

__device__ void q3_k(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw + 108, p.super + super * 2, 2);
  const uint8_t* scales = raw + 96;
  uint32_t top = 0;
  for (int g = 0; g < 16; ++g) {  // groups of 16: low nibbles by group, then their two top bits
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    uint8_t* to = p.scale + super * 12 + g / 2;
    *to = static_cast<uint8_t>(g % 2 == 0 ? low : *to | low << 4);
    top |= (uint32_t{scales[8 + g % 4]} >> (2 * (g / 4)) & 3u) << (2 * g);
  }
  store_word(p.scale + super * 12 + 8, top);
  for (int g = 0; g < 8; ++g) {
    pairs(raw + 32 + 32 * (g / 4), 2 * (g % 4), p.codes + (super * 8 + g) * 8);
    uint32_t third = 0;
    for (int c = 0; c < 32; ++c) third |= (uint32_t{raw[c]} >> g & 1u) << c;
    store_word(p.high + (super * 8 + g) * 4, spread(third));
  }
}

__device__ void iq4_xs(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  const uint32_t upper = raw[2] | uint32_t{raw[3]} << 8;
  for (int g = 0; g < 8; ++g) {
    const int low = raw[4 + g / 2] >> (4 * (g % 2)) & 15, high = static_cast<int>(upper >> (2 * g) & 3u);
    p.scale[super * 8 + g] = static_cast<uint8_t>((low | high << 4) - 32);
    copy(raw + 8 + 16 * g, p.codes + (super * 8 + g) * 16, 16);
  }
}

/// Types whose codes name points of a grid: the bits as they are, by 32 columns (host/format.h).
__device__ void put_half(uint8_t* to, uint32_t value) {
  *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(value);
}

__device__ void iq2_xxs(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  copy(raw + 2, p.codes + super * 64, 64);
}

__device__ void iq2_xs(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  copy(raw + 2, p.codes + super * 64, 64);
  copy(raw + 66, p.scale + super * 8, 8);
}

__device__ void iq2_s(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  for (int g = 0; g < 8; ++g) {
    copy(raw + 2 + 4 * g, p.codes + (super * 8 + g) * 8, 4);
    copy(raw + 34 + 4 * g, p.codes + (super * 8 + g) * 8 + 4, 4);
  }
  copy(raw + 66, p.high + super * 8, 8);
  copy(raw + 74, p.scale + super * 8, 8);
}

__device__ void iq3_xxs(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  copy(raw + 2, p.codes + super * 64, 64);
  copy(raw + 66, p.high + super * 32, 32);
}

__device__ void iq3_s(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  copy(raw + 2, p.codes + super * 64, 64);
  copy(raw + 74, p.high + super * 32, 32);
  for (int g = 0; g < 8; ++g)
    put_half(p.scale + (super * 8 + g) * 2, raw[66 + g] | (raw[106 + g / 2] >> (4 * (g % 2)) & 15u) << 8);
}

__device__ void iq1_s(const uint8_t* raw, int64_t super, const Planes& p) {
  copy(raw, p.super + super * 2, 2);
  copy(raw + 2, p.codes + super * 32, 32);
  copy(raw + 34, p.scale + super * 16, 16);
}

__device__ void iq1_m(const uint8_t* raw, int64_t super, const Planes& p) {
  const auto scales = [raw](int i) { return raw[48 + 2 * i] | uint32_t{raw[49 + 2 * i]} << 8; };
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) d |= scales(i) >> 12 << (4 * i);
  put_half(p.super + super * 2, d);
  copy(raw, p.codes + super * 32, 32);
  copy(raw + 32, p.high + super * 16, 16);
  for (int g = 0; g < 8; ++g) {  // a scale of three bits for 16 columns, four of them a word
    const uint32_t both = scales(g / 2) >> (6 * (g % 2));
    p.scale[super * 8 + g] = static_cast<uint8_t>((both & 7u) | (both >> 3 & 7u) << 4);
  }
}

/// 64 columns, 16 under a scale.
__device__ void nvfp4(const uint8_t* raw, int64_t block, const Planes& p) {
  copy(raw, p.scale + block * 4, 4);
  for (int g = 0; g < 2; ++g) {
    const uint8_t* const runs = raw + 4 + 16 * g;  // byte i of 8 of a run: columns i and 8 + i
    for (int i = 0; i < 16; ++i) {
      const int shift = i < 8 ? 0 : 4;
      p.codes[(block * 2 + g) * 16 + i] =
          static_cast<uint8_t>((runs[i % 8] >> shift & 15) | (runs[8 + i % 8] >> shift & 15) << 4);
    }
  }
}

__global__ void repack_blocks(Format format, int block_bytes, const uint8_t* raw, int64_t first,
                              int64_t count, Planes planes) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const uint8_t* block = raw + i * block_bytes;
  const int64_t at = first + i;
  switch (format.type) {
    case Type::Q4_K: return q4_k(block, at, planes);
    case Type::Q5_K: return q5_k(block, at, planes);
    case Type::Q6_K: return q6_k(block, at, planes);
    case Type::Q2_K: return q2_k(block, at, planes);
    case Type::Q3_K: return q3_k(block, at, planes);
    case Type::IQ4_XS: return iq4_xs(block, at, planes);
    case Type::IQ2_XXS: return iq2_xxs(block, at, planes);
    case Type::IQ2_XS: return iq2_xs(block, at, planes);
    case Type::IQ2_S: return iq2_s(block, at, planes);
    case Type::IQ3_XXS: return iq3_xxs(block, at, planes);
    case Type::IQ3_S: return iq3_s(block, at, planes);
    case Type::IQ1_S: return iq1_s(block, at, planes);
    case Type::IQ1_M: return iq1_m(block, at, planes);
    case Type::NVFP4: return nvfp4(block, at, planes);
    default: return small_block(block, format, at, planes);
  }
}

}  // namespace

void repack(Type type, const uint8_t* raw, int64_t first, int64_t count, const Planes& planes,
            cudaStream_t stream) {
  const quant::TypeInfo& info = quant::type_info(type);
  constexpr unsigned kThreads = 128;
  const int64_t blocks = count / info.block;
  repack_blocks<<<static_cast<unsigned>((blocks + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      *find_format(type), info.bytes, raw, first / info.block, blocks, planes);
  check(cudaGetLastError());
}

}  // namespace sluice::backend::cuda
