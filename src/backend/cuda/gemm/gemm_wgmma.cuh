// Products of packed weights with many tokens, by wgmma (sm_90a): prefill and large batches.
//
// A thread block takes 128 outputs (or 64 and their gates) and up to 256 tokens: so an expert's weights are
// unpacked once. Two warpgroups take 64 outputs each. Their weights go from global memory into registers a
// chunk of 128 columns ahead, become halves there and are the first operand as they are; tokens, packed in
// n-tiles that already are what the second operand has to look like in shared memory, are brought there by a
// third group through a ring of bulk copies (one warp of it works; a group gives its registers away, a warp
// could not). While one warpgroup unpacks, the other one multiplies.
//
// Bound by the tensor cores where an expert has many tokens: 64 x 256 x 128 products take 1,024 cycles,
// unpacking their weights some 250 of the other warpgroup's. With few tokens (up to 64) it is a chunk's chain
// that takes the time: weights here, unpacked, tokens here. Sums leave room for two blocks an SM then, so
// that every scheduler has four such chains, and one block's begin and end are beside the other's products.
#pragma once

#include "backend/cuda/gemm/gemm_mma.cuh"
#include "backend/cuda/prim/wgmma.cuh"

namespace sluice::backend::cuda {

inline constexpr int kLargeOutputs = 128;

namespace large {

inline constexpr int kNTileBytes = kNTileTokens * kChunkColumns * 2;  ///< an n-tile's chunk

/// A thread block for tiles of up to kTokens: two warpgroups that multiply, and a third that brings tokens.
/// With few tokens one of the first's warps does: two blocks of nine warps would have 96 registers a thread,
/// not 128.
template <int kTokens>
struct Shape {
  static constexpr bool kSmallTile = kTokens <= kSmallTileTokens;
  static constexpr int kBlocks = kSmallTile ? 2 : 1;  ///< an SM
  static constexpr int kThreads = kSmallTile ? 256 : 384;
  static constexpr int kStages = kSmallTile ? 6 : 3;
  static constexpr int kAhead = 3;  ///< chunks that tokens are asked for ahead, by a warp that multiplies
  static constexpr int kStageBytes = kTokens / kNTileTokens * kNTileBytes;
  static constexpr int kTokenSlots = kStages * kStageBytes;
  static constexpr int kBarriers = kTokenSlots + kTokens * static_cast<int>(sizeof(tiles::TokenSlot));
  static constexpr int kSharedBytes = kBarriers + 16 * kStages + 16 + 1024;  ///< whole atoms
};

#ifdef SLUICE_WGMMA

template <int kTokens>
struct Ring {
  using Shape = large::Shape<kTokens>;
  uint32_t stages, full, empty, token_slots_ready;  ///< shared addresses
  tiles::TokenSlot* token_slots;                    ///< in shared memory

  __device__ uint32_t stage(int i) const { return stages + i * Shape::kStageBytes; }

  /// One warp: chunk `c` of the tile's tokens, 32 tokens a lane.
  __device__ __forceinline__ void bring(const Product& p, const TokenTile& tile, int c) const {
    constexpr int kGroupBytes = kGroupTokens / kNTileTokens * kNTileBytes;
    const int lane = threadIdx.x % 32, groups = (tile.count + kGroupTokens - 1) / kGroupTokens;
    const int first = p.plan.list == nullptr ? tile.matrix * p.plan.per_matrix + tile.first : tile.first;
    const int at = c % Shape::kStages;
    barrier_wait(empty + 8 * at, (c / Shape::kStages & 1) ^ 1);
    if (lane == 0) barrier_expect(full + 8 * at, groups * kGroupBytes);
    __syncwarp();
    if (lane < groups) {
      const char* const from = reinterpret_cast<const char*>(p.tokens.data) +
                               int64_t{first / kGroupTokens + lane} * p.tokens.chunks * kGroupBytes;
      copy_bulk(stage(at) + lane * kGroupBytes, from + int64_t{c} * kGroupBytes, kGroupBytes, full + 8 * at);
    }
  }

  /// Some threads, `count` of them, of which this is one: where each token's results go.
  __device__ __forceinline__ void look_up(const Product& p, const TokenTile& tile, int thread,
                                          int count) const {
    for (int i = thread; i < kTokens; i += count) token_slots[i] = tiles::place_of(p, tile, i);
    barrier_arrive(token_slots_ready);
  }
};

/// Starts the products of half a chunk (64 columns) with kParts x kWidth tokens.
template <int kParts, int kWidth>
__device__ __forceinline__ void start(float (&sum)[kParts][kWidth / 8][4], const uint32_t (&a)[4][4],
                                      uint64_t tokens) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      wgmma_64x16(sum[i], a[s], tokens + ((i * (kWidth / 8) * kNTileBytes + s * 32) >> 4));
    }
  }
  wgmma_commit();
}

/// A warpgroup's sums, kParts of kWidth tokens. kType: what the weights are of; F32: one of the family's,
/// told at run time.
template <Family kFamily, quant::Type kType, int kParts, int kWidth, int kTokens>
__device__ __forceinline__ void multiply(const Product& p, const TokenTile& tile, const Ring<kTokens>& ring,
                                         char* exchange) {
  using Shape = large::Shape<kTokens>;
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  Matrix w = p.gated && group == 1 ? p.up : p.weight;
  if constexpr (kType != quant::Type::F32) w.type = kType;
  const int first_row =
      static_cast<int>(blockIdx.x) * (p.gated ? 64 : 128) + (p.gated ? 0 : group * 64) + thread / 32 * 16 + g;
  const int64_t row[2] = {w.row(tile.matrix, min(first_row, w.rows - 1)),
                          w.row(tile.matrix, min(first_row + 8, w.rows - 1))};
  const int blocks = blocks_of(w);

  float sum[kParts][kWidth / 8][4];
#pragma unroll
  for (int i = 0; i < kParts * kWidth / 2; ++i) sum[i / (kWidth / 2)][i / 4 % (kWidth / 8)][i % 4] = 0;
  // Half a chunk is unpacked while the half before it is multiplied: two sets of operands, one group in
  // flight.
  Block<kFamily> next[2];
  next[0].load(w, row[0], t, t < blocks);
  next[1].load(w, row[1], t, t < blocks);
  // Registers hold a chunk ahead, which hides L2's latency, not the memory's: lines are asked for before.
  // Lane l follows row l of the warp's 16; lanes from 16 on their scales, which are few.
  constexpr int kCodeBytes = is_float(kFamily) ? 0 : Block<kFamily>::kCodeWords * 4;
  tiles::Lines lines(lane < 16 ? w.codes : w.scale,
                     w.row(tile.matrix, min(first_row - g + lane % 16, w.rows - 1)), w.columns / 32,
                     lane < 16 ? kCodeBytes : 2);
  lines.ask(lane < 16 ? 48 * kCodeBytes : w.columns);
  uint32_t a[2][4][4];
  const uint64_t first_stage = matrix_descriptor(ring.stages, kNTileBytes);
  const bool brings = Shape::kSmallTile && threadIdx.x < 32;
  if (brings) {
    for (int c = 0; c < min(Shape::kAhead, p.tokens.chunks); ++c) ring.bring(p, tile, c);
  }
  if constexpr (Shape::kSmallTile) ring.look_up(p, tile, threadIdx.x, Shape::kThreads);
  int stage = 0, phase = 0;
  for (int c = 0; c < p.tokens.chunks; ++c) {
    if (brings && c + Shape::kAhead < p.tokens.chunks) ring.bring(p, tile, c + Shape::kAhead);
    const Block<kFamily> now[2] = {next[0], next[1]};
    const int ahead = (c + 1) * 4 + t;
    next[0].load(w, row[0], ahead, ahead < blocks);
    next[1].load(w, row[1], ahead, ahead < blocks);
    lines.ask(4 * kCodeBytes);
    const fragments::Affine affine[2] = {now[0].affine(w), now[1].affine(w)};
    const uint64_t tokens = first_stage + static_cast<uint64_t>(stage * (Shape::kStageBytes >> 4));

    wgmma_wait<1>();
    unpack(w, now, affine, 0, a[0]);
    barrier_wait(ring.full + 8 * stage, phase);
    start<kParts, kWidth>(sum, a[0], tokens);
    wgmma_wait<1>();  // the chunk before this one is done with
    if (c > 0 && thread == 0) barrier_arrive(ring.empty + 8 * (stage == 0 ? Shape::kStages - 1 : stage - 1));
    unpack(w, now, affine, 1, a[1]);
    start<kParts, kWidth>(sum, a[1], tokens + (1024 >> 4));
    if (++stage == Shape::kStages) stage = 0, phase ^= 1;
  }
  wgmma_wait<0>();

  // Gates and ups meet where the tokens lay: every thread of one group finds its partner's sums.
  float* const others = reinterpret_cast<float*>(exchange) + thread;
  if (p.gated) {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (group == 1) {
#pragma unroll
      for (int i = 0; i < kParts * kWidth / 2; ++i) {
        others[i * 128] = sum[i / (kWidth / 2)][i / 4 % (kWidth / 8)][i % 4];
      }
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (group == 1) return;
  }
  barrier_wait(ring.token_slots_ready, 0);
  const bool there[2] = {first_row < w.rows, first_row + 8 < w.rows};
  const int n[2] = {min(first_row, w.rows - 1), min(first_row + 8, w.rows - 1)};
  const auto finish_all = [&]<bool kPlain>() {
#pragma unroll
    for (int n_tile = 0; n_tile < kParts * kWidth / 8; ++n_tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const tiles::TokenSlot token_slot = ring.token_slots[n_tile * 8 + 2 * t + i];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // Made even where nothing is stored (the first row's, then): loads without branches can be in
          // flight together.
          const float value = tiles::result_of<kPlain>(
              p, token_slot, n[h], sum[n_tile / (kWidth / 8)][n_tile % (kWidth / 8)][2 * h + i],
              p.gated ? others[(n_tile * 4 + 2 * h + i) * 128] : 0.0f);
          if (there[h] && token_slot.out >= 0) p.sink.out.data[token_slot.out + n[h]] = value;
        }
      }
    }
  };
  p.is_plain() ? finish_all.template operator()<true>() : finish_all.template operator()<false>();
}

#endif

}  // namespace large

template <Family kFamily, quant::Type kType, int kTokens>
__global__ void __launch_bounds__(large::Shape<kTokens>::kThreads, large::Shape<kTokens>::kBlocks)
    multiply_large(const Timestamps timestamps, const Product p) {
#ifdef SLUICE_WGMMA
  using namespace large;
  using Shape = large::Shape<kTokens>;
  extern __shared__ char large_shared[];
  char* const shared = large_shared;
  const uint32_t base = (shared_address(shared) + 1023) / 1024 * 1024;
  char* const exchange = shared + (base - shared_address(shared));
  const uint32_t barriers = base + Shape::kBarriers;
  const Ring<kTokens> ring{base, barriers, barriers + 8 * Shape::kStages, barriers + 16 * Shape::kStages,
                           reinterpret_cast<tiles::TokenSlot*>(exchange + Shape::kTokenSlots)};
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, 2);
    }
    barrier_init(ring.token_slots_ready, Shape::kSmallTile ? Shape::kThreads : 96);
    barrier_init_fence();
  }
  __syncthreads();
  pdl.wait();
  const TokenTile tile = tiles::tile_of(p.plan, static_cast<int>(blockIdx.y));
  if (tile.count <= 0) return;
  if constexpr (Shape::kSmallTile) {
    if (tile.count <= 32) {
      multiply<kFamily, kType, 1, 32>(p, tile, ring, exchange);
    } else {
      multiply<kFamily, kType, 1, 64>(p, tile, ring, exchange);
    }
  } else if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x >= 288) {
      ring.look_up(p, tile, threadIdx.x - 288, 96);
    } else {
      for (int c = 0; c < p.tokens.chunks; ++c) ring.bring(p, tile, c);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (tile.count <= 32) {
      multiply<kFamily, kType, 1, 32>(p, tile, ring, exchange);
    } else if (tile.count <= 64) {
      multiply<kFamily, kType, 1, 64>(p, tile, ring, exchange);
    } else if (tile.count <= 128) {
      multiply<kFamily, kType, 1, 128>(p, tile, ring, exchange);
    } else if (tile.count <= 192) {
      multiply<kFamily, kType, 3, 64>(p, tile, ring, exchange);
    } else {
      multiply<kFamily, kType, 2, 128>(p, tile, ring, exchange);
    }
  }
#endif
}

/// As launch_tiles, for plan.tile_tokens of up to kSmallTileTokens or kLargeTokens.
template <Family kFamily>
void launch_large(const Product& product, int64_t tiles, const Context& context);

}  // namespace sluice::backend::cuda
