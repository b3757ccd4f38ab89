// Attention of 64 rows by a warpgroup (wgmma, sm_90a) with a running softmax (online softmax: Milakov and
// Gimelshein 2018; a tile's scores under the values of the tile before it, as in FlashAttention-3): what
// attention/mla_expanded_attend.cu and attention/gqa_prefill_wgmma.cu share. Somebody else brings tiles of
// keys and values, two of each in shared memory: blocks of 64 columns, rows of 128 bytes, their units of 16
// swizzled.
#pragma once

#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/prim/wgmma.cuh"

#ifdef SLUICE_WGMMA
namespace sluice::backend::cuda {

/// Shared addresses.
struct Ring {
  uint32_t keys, values, key_full, key_empty, value_full, value_empty;
};

/// A warpgroup's 64 rows. S tells columns of keys (kWidth) and values (kValue), positions of a tile (kKeys)
/// and the bytes of its keys and values.
template <typename S>
struct TileAttention {
  static constexpr int kKeys = S::kKeys;
  using Scores = float[kKeys / 8][4];
  const Ring& ring;
  uint64_t queries;  ///< descriptor of the first
  int tiles;         ///< that the group's rows see
  int before = 0;    ///< tiles that have passed through the ring
  TwoRows<kKeys, S::kValue> rows;
  uint32_t weight[kKeys / 16][4];  ///< as the first operand

  __device__ __forceinline__ void start_scores(Scores& score, int i) {
    const int at = (before + i) % 2;
    barrier_wait(ring.key_full + 8 * at, (before + i) / 2 & 1);
    const uint64_t keys = matrix_descriptor(ring.keys + at * S::kKeyBytes, 1024);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < S::kWidth / 16; ++s) {
      wgmma_64x16_shared(score, queries + ((s / 4 * kHalfTile * kExpandBlock + s % 4 * 32) >> 4),
                         keys + ((s / 4 * kKeys * kExpandBlock + s % 4 * 32) >> 4), s > 0);
    }
    wgmma_commit();
  }
  /// Values' blocks of 64 columns lie kKeys rows apart, groups of eight rows 1,024 bytes; they are taken
  /// rotated.
  __device__ __forceinline__ void start_values(int i) {
    const int stage = (before + i) % 2;
    barrier_wait(ring.value_full + 8 * stage, (before + i) / 2 & 1);
    const uint32_t at = ring.values + stage * S::kValueBytes;
    const uint64_t values = static_cast<uint64_t>((at & 0x3FFFF) >> 4) |
                            (static_cast<uint64_t>(kKeys * kExpandBlock >> 4) << 16) |
                            (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) wgmma_64x16_rows(rows.sum, weight[s], values + s * (2048 >> 4));
    wgmma_commit();
  }
  static __device__ __forceinline__ void release(uint32_t barrier) {
    if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < S::kValue / 2; ++i) rows.sum[i / 4][i % 4] = 0;
    {
      Scores score;
      start_scores(score, 0);
      wgmma_wait<0>();
      hold_sums(score);
      release(ring.key_empty + 8 * (before % 2));
      rows.soften(score, 0);
      rows.pack(weight, score);
    }
    for (int i = 1; i < tiles; ++i) {
      Scores score;
      start_scores(score, i);
      start_values(i - 1);
      wgmma_wait<1>();
      hold_sums(score);
      release(ring.key_empty + 8 * ((before + i) % 2));
      rows.soften(score, i * kKeys);
      wgmma_wait<0>();
      hold_sums(rows.sum);
      release(ring.value_empty + 8 * ((before + i - 1) % 2));
      rows.rescale();
      // Not while products are in flight: their operands' registers may not be written then.
      rows.pack(weight, score);
    }
    start_values(tiles - 1);
    wgmma_wait<0>();
    hold_sums(rows.sum);
    release(ring.value_empty + 8 * ((before + tiles - 1) % 2));
  }
};

}  // namespace sluice::backend::cuda
#endif
