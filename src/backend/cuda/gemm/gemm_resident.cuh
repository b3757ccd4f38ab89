// Products of up to 32 tokens with a plain matrix of very many outputs (the output matrix), by wgmma
// (sm_90a).
//
// The tokens fit into shared memory whole and stay there; what costs is reading weights and making halves of
// them. A warpgroup takes 64 outputs at a time, by itself, and its weights go from global memory into
// registers two chunks of 128 columns ahead, across the ends of its tiles; lines are asked for before that.
#pragma once

#include "backend/cuda/gemm/gemm_mma.cuh"
#include "backend/cuda/prim/wgmma.cuh"

namespace sluice::backend::cuda {

namespace resident {

inline constexpr int kThreads = 512, kGroups = kThreads / 128;  ///< warpgroups
inline constexpr int kTileRows = 64, kTokens = 32;
inline constexpr int kChunkBytes = kTokens * kChunkColumns * 2;
inline constexpr int kNTileBytes = kNTileTokens * kChunkColumns * 2;
inline constexpr int kMostChunks = 26;
inline constexpr int kAhead = 6;  ///< chunks from a line's being asked for to its being loaded, even

#ifdef SLUICE_WGMMA

/// Goes through the chunks of a warpgroup's tiles: block 4 chunk + t of its row, or without t. Behind the
/// last tile it stays in that: what is loaded there is not used.
struct Cursor {
  int32_t block, chunk, tile;

  __device__ __forceinline__ void advance(int chunks, int tiles, int tiles_apart) {
    block += 4;
    if (++chunk < chunks) return;
    chunk = 0, tile += tiles_apart;
    block += ((tile < tiles ? tiles_apart * kTileRows : 0) - 1) * (4 * chunks);
  }
};

#endif

}  // namespace resident

template <Family kFamily, quant::Type kType>
__global__ void __launch_bounds__(resident::kThreads, 1)
    multiply_resident(const Timestamps timestamps, const __grid_constant__ Product p, int tiles) {
#ifdef SLUICE_WGMMA
  using namespace resident;
  constexpr int kNTiles = kTokens / kNTileTokens;
  extern __shared__ char resident_shared[];
  __shared__ __align__(8) uint64_t there;
  __shared__ float scales[kTokens];
  char* const base = resident_shared + (1024 - shared_address(resident_shared) % 1024) % 1024;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
  const int group = threadIdx.x / 128, chunks = p.tokens.chunks;
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) barrier_init(shared_address(&there), 1), barrier_init_fence();

  Matrix w = p.weight;
  if constexpr (kType != quant::Type::F32) w.type = kType;
  const int apart = static_cast<int>(gridDim.x) * kGroups;
  const int first = static_cast<int>(blockIdx.x) * kGroups + group;
  const auto cursor_of = [&](int row_in_tile, int block) {
    const int64_t row = w.row(0, min(first, tiles - 1) * kTileRows + row_in_tile);
    return Cursor{static_cast<int>(row) * (4 * chunks) + block, 0, first};
  };
  Cursor at = cursor_of(warp * 16 + g, t), line = cursor_of(warp * 16 + lane % 16, 0);
  const int eight_rows = 8 * 4 * chunks;  // blocks
  Block<kFamily> next[2][2];
  const auto load = [&](Block<kFamily>(&to)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) to[h].load(w, 0, at.block + h * eight_rows, true);
    at.advance(chunks, tiles, apart);
  };
  constexpr int kBytes = 4 * Block<kFamily>::kCodeWords;  // of a block's codes
  const auto ask = [&] {                                  // two chunks' lines
    if (line.tile < tiles) {
      if (lane < 16) {
        prefetch(w.codes + int64_t{line.block} * kBytes);
      } else if (kFamily == Family::Bits6) {
        prefetch(w.high + int64_t{line.block} * 8);
      }
    }
    line.advance(chunks, tiles, apart), line.advance(chunks, tiles, apart);
  };
  load(next[0]), load(next[1]);
  for (int i = 0; i < kAhead; i += 2) ask();
  __syncthreads();
  pdl.wait();
  const int rows = *p.plan.rows;
  if (threadIdx.x == 0) barrier_expect(shared_address(&there), static_cast<uint32_t>(chunks * kChunkBytes));
  if (lane == 0) {
    for (int c = threadIdx.x / 32; c < chunks; c += kThreads / 32) {
      copy_bulk(shared_address(base) + static_cast<uint32_t>(c * kChunkBytes),
                reinterpret_cast<const char*>(p.tokens.data) + int64_t{c} * kChunkBytes, kChunkBytes,
                shared_address(&there));
    }
  }
  if (threadIdx.x < kTokens)
    scales[threadIdx.x] = load_result(p.tokens.scale + min(static_cast<int>(threadIdx.x), rows - 1));
  __syncthreads();
  barrier_wait(shared_address(&there), 0);

  const uint64_t tokens = matrix_descriptor(shared_address(base), kNTileBytes);
  uint32_t a[2][4][4];
  for (int tile = first; tile < tiles; tile += apart) {
    float sum[kNTiles][4] = {};
    for (int c = 0; c < chunks; c += 2) {
      ask();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Block<kFamily> now[2] = {next[i][0], next[i][1]};
        load(next[i]);
        const fragments::Affine affine[2] = {now[0].affine(w), now[1].affine(w)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          wgmma_wait<1>();  // of the operands before those of now
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t x[4], y[4];
            now[0].pairs(w, affine[0], 2 * half + j, x);
            now[1].pairs(w, affine[1], 2 * half + j, y);
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              a[half][2 * j + k][0] = x[2 * k], a[half][2 * j + k][1] = y[2 * k];
              a[half][2 * j + k][2] = x[2 * k + 1], a[half][2 * j + k][3] = y[2 * k + 1];
            }
          }
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            wgmma_64x16(sum, a[half][s],
                        tokens + static_cast<uint64_t>(((c + i) * kChunkBytes + half * 1024 + s * 32) >> 4));
          }
          wgmma_commit();
        }
      }
    }
    wgmma_wait<0>();
    float* const out = p.sink.out.data + tile * kTileRows + warp * 16 + g;
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = n * 8 + 2 * t + j % 2;
        if (token < rows) out[token * p.sink.out.row_stride + j / 2 * 8] = sum[n][j] * scales[token];
      }
    }
  }
#endif
}

}  // namespace sluice::backend::cuda
