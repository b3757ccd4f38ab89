// Products of a few rows (2 to 32) in one launch with their packing: every block of threads makes the rows
// halves for itself, in shared memory, while the weights it has asked for before are on their way to its
// registers. For what is bound by latency: matrices of heads.
#pragma once

#include "backend/cuda/prim/fragments.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/wide.h"

namespace sluice::backend::cuda::few {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
inline constexpr int kMostRows = 32;

/// Strips of 8 tokens for so many rows.
constexpr int strips_for(int64_t rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : 4; }

/// Bytes from token to token of packed rows in shared memory: lanes of two tokens fall on different banks.
constexpr int row_pitch(int chunks) { return chunks * kChunkColumns * 2 + 64; }

/// Four numbers a lane of a row's chunks, as halves under a power of two, to shared memory: chunk, pairs by
/// word of the blocks, block. Its inverse goes to *scale.
template <int kChunks>
__device__ __forceinline__ void pack_row(const float4 (&v)[kChunks], int chunks, char* to, float* scale) {
  const int lane = threadIdx.x % 32, block = lane / 8, pair = 4 * (lane % 4) + 2 * (lane / 4 % 2);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i)
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
  const PowerOfTwo power = scale_for(lane_max(largest));
  if (lane == 0) *scale = power.inverse;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (i >= chunks) break;
    const float f = power.factor;
    *reinterpret_cast<uint2*>(to + i * 256 + (pair / 4 * 16 + block * 4 + pair % 4) * 4) = {
        pack_halves(v[i].x * f, v[i].z * f), pack_halves(v[i].y * f, v[i].w * f)};
  }
}

/// Rows g and g + 8 of 16 outputs, a block of 32 columns of each.
template <quant::Type kType>
struct Unit {
  static constexpr Family family() {
    Family family{};
    family_of(kType, family);
    return family;
  }
  Block<family()> block[2];

  __device__ __forceinline__ void load(Matrix m, int64_t row, int chunk) {
    m.type = kType;
    const int lane = threadIdx.x % 32, at = chunk * 4 + lane % 4, last = m.columns / 32 - 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) block[h].load(m, row + lane / 4 + 8 * h, min(at, last), true);
  }
  /// The same of 8 rows of one matrix and 8 of another.
  __device__ __forceinline__ void load(Matrix m, int64_t row, Matrix other, int64_t other_row, int chunk) {
    m.type = other.type = kType;
    const int lane = threadIdx.x % 32, at = chunk * 4 + lane % 4, last = m.columns / 32 - 1;
    block[0].load(m, row + lane / 4, min(at, last), true);
    block[1].load(other, other_row + lane / 4, min(at, last), true);
  }
  /// Adds its products with the packed tokens of a chunk; beyond the last block those are zeroes.
  template <int kStrips>
  __device__ __forceinline__ void multiply(const Matrix& m, const char* packed, int pitch, int chunk,
                                           float (&sum)[kStrips][4]) const {
    multiply(m, sum, [&](int j, int n) { return token_at(packed, pitch, chunk, j, n); });
  }
  /// What this lane needs of packed tokens for step j of four and strip n.
  __device__ __forceinline__ static uint4 token_at(const char* packed, int pitch, int chunk, int j, int n) {
    const int lane = threadIdx.x % 32;
    return *reinterpret_cast<const uint4*>(packed + (n * kStripTokens + lane / 4) * pitch + chunk * 256 +
                                           j * 64 + lane % 4 * 16);
  }
  /// The same with tokens that are at hand: token(j, n).
  template <int kStrips, typename Token>
  __device__ __forceinline__ void multiply(Matrix m, float (&sum)[kStrips][4], const Token& token_of) const {
    m.type = kType;
    const fragments::Affine affine[2] = {block[0].affine(m), block[1].affine(m)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t low[4], high[4];
      block[0].pairs(m, affine[0], j, low);
      block[1].pairs(m, affine[1], j, high);
      const uint32_t first[4] = {low[0], high[0], low[1], high[1]},
                     second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
      for (int n = 0; n < kStrips; ++n) {
        const uint4 token = token_of(j, n);
        mma_16x8x16(sum[n], first, token.x, token.y);
        mma_16x8x16(sum[n], second, token.z, token.w);
      }
    }
  }
};

/// Sums of `shares` warps meet, those of tile w in warps w, w + kTiles, ..: put(tile, output, token, sum).
template <int kStrips, typename Put>
__device__ __forceinline__ void meet(const float (&sum)[kStrips][4], int tiles, int most_tiles,
                                     float* meeting, Put put) {
  constexpr int kSums = kStrips * 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kSums; ++i) meeting[(warp * kSums + i) * 32 + lane] = sum[i / 4][i % 4];
  __syncthreads();
  for (int at = threadIdx.x; at < tiles * kSums * 32; at += kThreads) {
    const int tile = at / (kSums * 32), i = at / 32 % kSums, l = at % 32;
    float all = 0;
    for (int w = tile; w < kWarps; w += most_tiles) all += meeting[(w * kSums + i) * 32 + l];
    put(tile, l / 4 + i / 2 % 2 * 8, i / 4 * kStripTokens + 2 * (l % 4) + i % 2, all);
  }
}

}  // namespace sluice::backend::cuda::few
