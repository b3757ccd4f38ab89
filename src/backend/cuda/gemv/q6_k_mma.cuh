// Products of 16 rows of Q6_K with n-tiles of 8 tokens in halves: what a warp does with 256 columns of them
// that lie in shared memory.
//
// A group of 16 columns has a scale, and lanes that shared a group would all make it ready, and scale sums of
// it token by token. So a lane keeps two whole blocks of 32 columns of two rows, and their numbers are scaled
// before they are multiplied. Bits of a code are a half without an exponent, wherever they stand among the
// lower eleven: nibbles and upper bits need no shifting but for odd bytes, they have scales of their own.
// What comes out is (q - 32) times the group's scale, a whole number of 13 bits, times 2^-24, rounded to a
// half once. The scale of all 256 columns multiplies their sum.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/weight_fragments.cuh"

namespace sluice::backend::cuda::q6_k_mma {

inline constexpr int kRows = 16;      ///< of weights
inline constexpr int kColumns = 256;  ///< that have a scale of scales
/// What sums of products are too small by.
inline constexpr float kFactor = 0x1p24f;

/// Columns of a row in shared memory: low nibbles, whose units of 16 bytes are swizzled (map_tiles), and
/// upper bits. Rows lie without gaps.
inline constexpr int kLowLine = kColumns / 2, kHighLine = kColumns / 4;
inline constexpr int kLowBytes = kRows * kLowLine, kHighBytes = kRows * kHighLine;
/// Bytes of 256 columns of an n-tile's tokens.
inline constexpr int kTokenBytes = kNTileTokens * kColumns * 2;

/// Where a token's columns c .. c + 3 lie, two pairs (c, c + 2) and (c + 1, c + 3). Lane t of the four that
/// share a token takes blocks 2t and 2t + 1; of every 512 bytes each lane has 16: four columns, and those 16
/// on.
__device__ __forceinline__ constexpr int place_of_four(int token, int column) {
  const int block = column / 32, four = column % 16 / 4, upper = column % 32 / 16;
  return (block % 2 * 4 + four) * 512 + (token * 4 + block / 2) * 16 + upper * 8;
}

/// What the bits of a block's codes become numbers with, of both groups: nibbles, of which the second's lie
/// in the upper halves of bytes, and upper bits by their place in a byte.
struct Scales {
  __half2 nibble, upper[4], offset;

  /// four: scales of two blocks, 128 more than they are.
  __device__ __forceinline__ Scales(uint32_t four, int block) {
    using namespace fragments;
    const uint32_t under_1024 = __byte_perm(four, 0x64u, block == 0 ? 0x4140 : 0x4342);
    const __half2 scale = __hsub2(as_half2(under_1024), twice(1152.0f));
    nibble = __hmul2(scale, __floats2half2_rn(1.0f, 0x1p-4f));
    upper[0] = __hmul2(scale, twice(16.0f)), upper[1] = __hmul2(scale, twice(4.0f));
    upper[2] = scale, upper[3] = __hmul2(scale, twice(0.25f));
    offset = __hmul2(scale, twice(-0x1p-19f));  // -32 times 2^-24
  }
  /// A pair of a group's; nibbles: in their place; word: with its upper bits, those of columns 4 four and on.
  __device__ __forceinline__ uint32_t pair(int group, uint32_t nibbles, uint32_t word, int four) const {
    using namespace fragments;
    const auto own = [group](__half2 of) { return group == 0 ? __low2half2(of) : __high2half2(of); };
    const uint32_t bits = word & 0x00030003u << 2 * four;
    if (group == 0 && four == 2)  // side by side as they stand
      return as_bits(__hfma2(as_half2(nibbles | bits), own(nibble), own(offset)));
    const __half2 above = __hfma2(as_half2(bits), own(upper[four]), own(offset));
    return as_bits(__hfma2(as_half2(nibbles), own(nibble), above));
  }
};

/// Adds 256 columns' products. low, high: the planes' pieces; scale: this lane's four of its two rows (g and
/// g + 8); tokens: of the first n-tile, `apart` bytes before the next one's. Sums lie as in mma_16x8x16.
template <int kNTiles>
__device__ __forceinline__ void multiply(const char* low, const char* high, const uint32_t (&scale)[2],
                                         const char* tokens, int apart, float (&sum)[kNTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int unit = ((2 * t) ^ g) * 16;
  const char* const own = tokens + lane * 16;
  uint4 upper[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    upper[h] = *reinterpret_cast<const uint4*>(high + (g + 8 * h) * kHighLine + t * 16);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t codes[2][4], bits[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 word = *reinterpret_cast<const uint4*>(low + (g + 8 * h) * kLowLine + (unit ^ block * 16));
      codes[h][0] = word.x, codes[h][1] = word.y, codes[h][2] = word.z, codes[h][3] = word.w;
      bits[h][0] = block == 0 ? upper[h].x : upper[h].z, bits[h][1] = block == 0 ? upper[h].y : upper[h].w;
    }
    const Scales scales[2] = {{scale[0] ^ 0x80808080u, block}, {scale[1] ^ 0x80808080u, block}};
#pragma unroll
    for (int four = 0; four < 4; ++four) {
      uint32_t first[4], second[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i % 2, shift = i / 2 * 8;
        const uint32_t word = codes[h][four] >> shift;
        first[i] = scales[h].pair(0, word & 0x000F000Fu, bits[h][0] >> shift, four);
        second[i] = scales[h].pair(1, word & 0x00F000F0u, bits[h][1] >> shift, four);
      }
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        const uint4 token = *reinterpret_cast<const uint4*>(own + n * apart + (block * 4 + four) * 512);
        mma_16x8x16(sum[n], first, token.x, token.y);
        mma_16x8x16(sum[n], second, token.z, token.w);
      }
    }
  }
}

}  // namespace sluice::backend::cuda::q6_k_mma
