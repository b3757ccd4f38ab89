// Products of packed weights with some tens of tokens, by mma.sync: any processor since sm_80.
//
// A warp takes 32 outputs (or 16 and their gates) and up to 64 tokens. Weights are the first operand and go
// from global memory straight into registers, a chunk of 128 columns ahead; tokens come from the caches.
// Where there is one matrix, the warps of a thread block share its columns, and their sums meet in shared
// memory at the end, in the order of the warps; where there are many (experts), each warp has outputs of its
// own and nobody waits for anybody. An element's sum depends on nothing but its weights and its token.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/weight_fragments.cuh"

namespace sluice::backend::cuda {

inline constexpr int kTileThreads = 256;

namespace tiles {

inline constexpr int kWarps = kTileThreads / 32, kRowTiles = 2;  ///< 16 rows each

/// The tile of this thread block, or one of no tokens.
__device__ __forceinline__ TokenTile tile_of(const TokenPlan& plan, int index) {
  if (plan.tiles != nullptr) return index < *plan.tile_count ? plan.tiles[index] : TokenTile{0, 0, 0, 0};
  const int per_matrix = (plan.per_matrix + plan.tile_tokens - 1) / plan.tile_tokens;
  const int first = index % per_matrix * plan.tile_tokens;
  return {index / per_matrix, first, min(plan.tile_tokens, *plan.rows - first), 0};
}

struct Token {
  int32_t pair, slot;
};

__device__ __forceinline__ Token token_of(const TokenPlan& plan, const TokenTile& tile, int i) {
  if (plan.list == nullptr) return {tile.first + i, tile.matrix * plan.per_matrix + tile.first + i};
  const int32_t pair = plan.list[tile.first + i];
  return {pair, plan.pair_divisor == 0 ? tile.first + i : pair / plan.pair_divisor};
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }
/// A gate and an up made one.
__device__ __forceinline__ float gate(const program::Swiglu& form, float g, float up) {
  g = fminf(g, form.limit), up = fminf(fmaxf(up, -form.limit), form.limit);
  return g / (1.0f + __expf(-form.alpha * g)) * (up + form.shift);
}

/// Where a token's results go, in shared memory: looked up once a thread block.
struct TokenSlot {
  int64_t out, residual;  ///< elements from the beginning of each; out -1: nowhere
  float scale;
  int32_t matrix;
};

__device__ __forceinline__ TokenSlot place_of(const Product& p, const TokenTile& tile, int i) {
  if (i >= tile.count) return {-1, 0, 0, 0};
  const Token token = token_of(p.plan, tile, i);
  if (token.pair < 0) return {-1, 0, 0, 0};
  const int32_t row = token.pair / p.sink.used;
  const int32_t head = token.pair - row * p.sink.used + tile.matrix * p.sink.head_per_matrix;
  return {row * p.sink.out.row_stride + head * p.sink.out.head_stride, row * p.sink.residual_stride,
          p.tokens.scale[token.slot], tile.matrix};
}

/// Output n of a token, of its sum and, beside a gate, the up's. Results and residual are never the same
/// memory. kPlain: Product::is_plain, told once: asked of every number it takes 15% of a prompt's speed.
template <bool kPlain>
__device__ __forceinline__ float result_of(const Product& p, const TokenSlot& token_slot, int n, float sum,
                                           float up) {
  float value = sum * token_slot.scale;
  if constexpr (kPlain) {
    if (p.gated) value = silu(value) * (up * token_slot.scale);
  } else {
    const int64_t of_bias = int64_t{token_slot.matrix} * p.weight.rows + n;
    if (p.scale != nullptr) value *= __ldg(p.scale + token_slot.matrix);
    if (p.bias != nullptr) value += __ldg(p.bias + of_bias);
    if (p.gated) {
      up *= token_slot.scale;
      if (p.up_scale != nullptr) up *= __ldg(p.up_scale + token_slot.matrix);
      if (p.up_bias != nullptr) up += __ldg(p.up_bias + of_bias);
      value = gate(p.form, value, up);
    }
  }
  if (p.sink.residual != nullptr) value += __ldg(p.sink.residual + token_slot.residual + n);
  return value;
}

/// Asks for the lines of a row's codes (or scales) ahead of their use.
struct Lines {
  const uint8_t *at, *end;

  /// `bytes` a block of 32 in the plane.
  __device__ __forceinline__ Lines(const uint8_t* plane, int64_t row, int blocks, int bytes)
      : at(plane + row * blocks * bytes), end(plane == nullptr ? at : at + blocks * bytes) {}
  /// The next `bytes` of them; a line is 128.
  __device__ __forceinline__ void ask(int bytes) {
    for (const uint8_t* const to = at + bytes; at < to && at < end; at += 64) {
      if (reinterpret_cast<uintptr_t>(at) % 128 < 64) prefetch(at);
    }
  }
};

/// A chunk's blocks of this lane: rows g and g + 8 of each of its tiles of 16.
template <Family kFamily>
struct Chunk {
  Block<kFamily> block[kRowTiles][2];

  __device__ __forceinline__ void load(const Matrix* const (&w)[kRowTiles],
                                       const int64_t (&row)[kRowTiles][2], int block_index) {
    const bool there = block_index < blocks_of(*w[0]);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) block[i][h].load(*w[i], row[i][h], block_index, there);
    }
  }
};

}  // namespace tiles

/// Outputs that a thread block takes.
constexpr int64_t tile_outputs(bool gated, bool shares_columns) {
  return (gated ? 16 : 32) * (shares_columns ? 1 : tiles::kWarps);
}
/// Shared memory: where the tokens' results go, and sums that have to meet.
constexpr int64_t tile_shared_bytes(int n_tiles, bool shares_columns) {
  return n_tiles * kNTileTokens * int64_t{sizeof(tiles::TokenSlot)} +
         (shares_columns ? int64_t{tiles::kWarps} * tiles::kRowTiles * n_tiles * 4 * 32 * 4 : 0);
}

template <Family kFamily, int kNTiles, bool kSharesColumns>
__global__ void __launch_bounds__(kTileThreads, kNTiles <= 2 && !kSharesColumns ? 2 : 1)
    multiply_tiles(const Timestamps timestamps, const Product p) {
  using namespace tiles;
  constexpr int kAlong = kSharesColumns ? kWarps : 1;
  constexpr bool kTokensAhead = kSharesColumns ? kNTiles <= 4 : kNTiles <= 2;
  extern __shared__ float tiles_shared[];
  TokenSlot* const token_slots = reinterpret_cast<TokenSlot*>(tiles_shared);
  float* const reduction = reinterpret_cast<float*>(token_slots + kNTiles * kNTileTokens);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, along = kSharesColumns ? warp : 0;
  const int g = lane / 4, t = lane % 4;
  const int part =
      kSharesColumns ? static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) * kWarps + warp;
  const int first_row = part * (p.gated ? 16 : 32);
  const Matrix* const matrix[kRowTiles] = {&p.weight, p.gated ? &p.up : &p.weight};

  const PdlLink pdl(timestamps);
  pdl.wait();
  const TokenTile tile = tile_of(p.plan, static_cast<int>(blockIdx.y));
  if (tile.count <= 0) return;

  int64_t row[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = first_row + (p.gated ? 0 : 16 * i) + 8 * h + g;
      row[i][h] = matrix[i]->row(tile.matrix, min(n, matrix[i]->rows - 1));
    }
  }
  Chunk<kFamily> now, next;  // loads first: they take longest
  next.load(matrix, row, along * 4 + t);

  // Lane l follows row l of the warp's 32. Float types need no help: their rows are read in longer pieces.
  constexpr int kCodeBytes = is_float(kFamily) ? 0 : Block<kFamily>::kCodeWords * 4;
  const int follow = min(first_row + (p.gated ? lane % 16 : lane), p.weight.rows - 1);
  Lines lines(p.gated && lane >= 16 ? p.up.codes : p.weight.codes,
              p.gated && lane >= 16 ? p.up.row(tile.matrix, follow) : p.weight.row(tile.matrix, follow),
              p.weight.columns / 32, kCodeBytes);
  if (!kSharesColumns) lines.ask(24 * kCodeBytes);

  const uint4* x[kNTiles];
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
    Token token = token_of(p.plan, tile, min(n * kNTileTokens + g, tile.count - 1));
    if (token.pair < 0) token.slot = 0;  // a hole of the list: some row, whose product nobody stores
    x[n] = reinterpret_cast<const uint4*>(p.tokens.data) +
           (static_cast<int64_t>(token.slot) * p.tokens.chunks * (kChunkColumns / 8) + t);
  }
  uint4 b[4][kNTiles];
  const auto load_tokens = [&](int c, int j) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) b[j][n] = __ldg(x[n] + c * (kChunkColumns / 8) + j * 4);
  };
  if (kTokensAhead && along < p.tokens.chunks) {
#pragma unroll
    for (int j = 0; j < 4; ++j) load_tokens(along, j);
  }
  if (threadIdx.x < kNTiles * kNTileTokens)
    token_slots[threadIdx.x] = place_of(p, tile, static_cast<int>(threadIdx.x));

  float sum[kRowTiles][kNTiles][4] = {};
  for (int c = along; c < p.tokens.chunks; c += kAlong) {
    now = next;
    if (c + kAlong < p.tokens.chunks) next.load(matrix, row, (c + kAlong) * 4 + t);
    if (!kSharesColumns) lines.ask(4 * kCodeBytes);
    fragments::Affine affine[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) affine[i][h] = now.block[i][h].affine(*matrix[i]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!kTokensAhead) load_tokens(c, j);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        uint32_t low[4], high[4];
        now.block[i][0].pairs(*matrix[i], affine[i][0], j, low);
        now.block[i][1].pairs(*matrix[i], affine[i][1], j, high);
        const uint32_t first[4] = {low[0], high[0], low[1], high[1]},
                       second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          mma_16x8x16(sum[i][n], first, b[j][n].x, b[j][n].y);
          mma_16x8x16(sum[i][n], second, b[j][n].z, b[j][n].w);
        }
      }
      if (kTokensAhead && c + kAlong < p.tokens.chunks) load_tokens(c + kAlong, j);
    }
  }

  constexpr int kHalf = kNTiles * 4, kSums = kRowTiles * kHalf;  // of a lane
  if constexpr (kSharesColumns) {
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      reduction[(warp * kSums + i) * 32 + lane] = sum[i / kHalf][i / 4 % kNTiles][i % 4];
  }
  __syncthreads();  // for the places, too
  // Sum i of a lane: of row tile i / kHalf, n-tile i / 4 % kNTiles; i / 2 % 2 says which row, i % 2 which
  // token.
  const auto finish = [&]<bool kPlain>(int i, float value, float up) {
    const TokenSlot token_slot = token_slots[i / 4 % kNTiles * kNTileTokens + 2 * t + i % 2];
    const int n = first_row + (p.gated ? 0 : i / kHalf * 16) + g + i / 2 % 2 * 8;
    if (token_slot.out >= 0 && n < p.weight.rows)
      p.sink.out.data[token_slot.out + n] = result_of<kPlain>(p, token_slot, n, value, up);
  };
  const auto finish_all = [&]<bool kPlain>() {
    if constexpr (kSharesColumns) {
      const auto total = [&](int i) {
        float value = reduction[i * 32 + lane];
#pragma unroll
        for (int k = 1; k < kWarps; ++k) value += reduction[(k * kSums + i) * 32 + lane];
        return value;
      };
      for (int i = warp; i < (p.gated ? kHalf : kSums); i += kWarps)
        finish.template operator()<kPlain>(i, total(i), p.gated ? total(i + kHalf) : 0);
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i >= kHalf && p.gated) continue;
        finish.template operator()<kPlain>(i, sum[i / kHalf][i / 4 % kNTiles][i % 4],
                                           sum[1][i / 4 % kNTiles][i % 4]);
      }
    }
  };
  p.is_plain() ? finish_all.template operator()<true>() : finish_all.template operator()<false>();
}

/// Starts the kernel for weights of one family and plan.tile_tokens of 8, 16, 32 or 64; `tiles` is how many
/// tiles of tokens there are at most. Defined by gemm_instances.cuh for the files gemm_mma_<family>.cu.
template <Family kFamily>
void launch_tiles(const Product& product, int64_t tiles, const Context& context);

}  // namespace sluice::backend::cuda
