// Products of a few rows (2 to 32) in one launch with their packing: every thread block makes the rows halves
// for itself, in shared memory, while the weights it has asked for before are on their way to its registers.
// For what is bound by latency: matrices of heads.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/weight_fragments.cuh"

namespace sluice::backend::cuda::small_batch {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
inline constexpr int kMostRows = 32;

/// Whether rows and heads begin at multiples of four numbers.
inline bool in_fours(const program::Tensor& tensor) {
  return tensor.stride[0] % 4 == 0 && tensor.stride[1] % 4 == 0 && tensor.offset % 4 == 0;
}

/// n-tiles of 8 tokens for so many rows.
constexpr int n_tiles_for(int64_t rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : 4; }

/// Where sums of warps meet: floats from a token's 16 outputs to the next one's, and what lies between two
/// warps, so that lanes write to 32 banks and eight of them read from 32.
inline constexpr int kReductionPitch = 20, kReductionGap = 16;

/// Bytes from token to token of packed rows in shared memory: lanes of two tokens fall on different banks.
constexpr int row_pitch(int chunks) { return chunks * kChunkColumns * 2 + 64; }

/// Four numbers a lane of a row's chunks, as halves under a power of two, to shared memory: chunk, pairs by
/// word of the blocks, block. Its inverse goes to *scale.
template <int kChunks>
__device__ __forceinline__ void pack_row(const float4 (&v)[kChunks], int chunks, char* to, float* scale) {
  const int lane = threadIdx.x % 32, block = lane / 8, pair = 4 * (lane % 4) + 2 * (lane / 4 % 2);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (i >= chunks) break;
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
  }
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
  template <int kNTiles>
  __device__ __forceinline__ void multiply(const Matrix& m, const char* packed, int pitch, int chunk,
                                           float (&sum)[kNTiles][4]) const {
    multiply(m, sum, [&](int j, int n) { return token_at(packed, pitch, chunk, j, n); });
  }
  /// What this lane needs of packed tokens for step j of four and n-tile n.
  __device__ __forceinline__ static uint4 token_at(const char* packed, int pitch, int chunk, int j, int n) {
    return *place_of_token(packed, pitch, chunk, j, n);
  }
  __device__ __forceinline__ static const uint4* place_of_token(const char* packed, int pitch, int chunk,
                                                                int j, int n) {
    const int lane = threadIdx.x % 32;
    return reinterpret_cast<const uint4*>(packed + (n * kNTileTokens + lane / 4) * pitch + chunk * 256 +
                                          j * 64 + lane % 4 * 16);
  }
  /// The same with tokens that are at hand: token(j, n).
  template <int kNTiles, typename Token>
  __device__ __forceinline__ void multiply(Matrix m, float (&sum)[kNTiles][4], const Token& token_of) const {
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
      for (int n = 0; n < kNTiles; ++n) {
        const uint4 token = token_of(j, n);
        mma_16x8x16(sum[n], first, token.x, token.y);
        mma_16x8x16(sum[n], second, token.z, token.w);
      }
    }
  }
};

__device__ __forceinline__ float4 times(float4 v, float factor) {
  return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
}

/// Floats of shared memory between two warps' sums, and of all warps, where sums lie by token.
constexpr int floats_of_warp(int n_tiles) { return n_tiles * kNTileTokens * kReductionPitch + kReductionGap; }
constexpr int reduction_floats(int n_tiles) { return kWarps * floats_of_warp(n_tiles); }

/// A warp leaves its sums: 16 outputs a token, kReductionPitch floats from one token to the next.
template <int kNTiles>
__device__ __forceinline__ void leave_sums(const float (&sum)[kNTiles][4], float* reduction) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const own = reduction + warp * floats_of_warp(kNTiles) + 2 * (lane % 4) * kReductionPitch + lane / 4;
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) own[(n * kNTileTokens + i % 2) * kReductionPitch + i / 2 * 8] = sum[n][i];
  }
}

/// Sums of warps meet, those of tile w in warps w, w + kTiles, ..; the first `tiles` of kTiles are there:
/// put(tile, token, four, sums) gets outputs 4 four .. 4 four + 3 of a tile. Neighbouring threads have
/// neighbouring outputs of a token.
template <int kTiles, int kNTiles, typename Put>
__device__ __forceinline__ void reduce_fours(const float (&sum)[kNTiles][4], int tiles, float* reduction,
                                             Put put) {
  constexpr int kTokens = kNTiles * kNTileTokens;
  leave_sums(sum, reduction);
  __syncthreads();
#pragma unroll
  for (int base = 0; base < kTokens * kTiles * 4; base += kThreads) {
    const int at = base + static_cast<int>(threadIdx.x), four = at % 4, tile = at / 4 % kTiles,
              token = at / (4 * kTiles);
    if (token >= kTokens || tile >= tiles) continue;
    float4 all{0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; w += kTiles) {
      const float4 part = *reinterpret_cast<const float4*>(reduction + (tile + w) * floats_of_warp(kNTiles) +
                                                           token * kReductionPitch + 4 * four);
      all.x += part.x, all.y += part.y, all.z += part.z, all.w += part.w;
    }
    put(tile, token, four, all);
  }
}

/// Sums of all warps meet: thread t gets output t % 16 of token t / 16, those of the first threads alone.
template <int kNTiles>
__device__ __forceinline__ float reduce_all(const float (&sum)[kNTiles][4], float* reduction) {
  leave_sums(sum, reduction);
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x) / 16, output = static_cast<int>(threadIdx.x) % 16;
  if (token >= kNTiles * kNTileTokens) return 0;
  float all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
    all += reduction[w * floats_of_warp(kNTiles) + token * kReductionPitch + output];
  return all;
}

}  // namespace sluice::backend::cuda::small_batch
