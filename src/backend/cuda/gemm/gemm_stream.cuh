// Products of packed weights with few tokens (up to 32 a matrix), by mma.sync, weights streamed through
// shared memory: sm_90 and newer.
//
// What few tokens cost is reading weights. 16 rows of a matrix lie without gaps, so an item of work (16
// outputs, or 16 gates and their 16 ups, times a tile of tokens) is a few bulk copies of 2 to 32 KB, which
// one warp keeps in flight through a ring; a thread block an SM takes an equal stretch of all items, whatever
// experts they belong to. Groups of warps take items in turn: a group's warps share the columns, unpack them
// from shared memory, and their sums meet there in the order of the warps. An element's sum depends on
// nothing but its weights and its token.
//
// Weights of one matrix are asked for before the kernel waits for its predecessor; those of experts once it
// is known which.
#pragma once

#include "backend/cuda/gemm/gemm_mma.cuh"

namespace sluice::backend::cuda {

namespace stream {

inline constexpr int kRows = 16;  ///< outputs of an item
inline constexpr int kConsumerWarps = 16, kThreads = (kConsumerWarps + 1) * 32;
inline constexpr int kMostSlots = 16, kMostProducts = 2;
inline constexpr int kMostTokens = 32;

/// A product's planes in the ring: bytes of a row's piece by plane (codes, high, scale, super), and where
/// they begin in a slot.
struct Planes {
  int32_t row_bytes[4];    ///< of a whole row in device memory
  int32_t piece_bytes[4];  ///< of a piece's columns of it
  int32_t offset[4];       ///< in a slot, of 16 rows of pieces; the other side's are side_bytes on
};

struct Item {
  Product product;
  Planes planes;
  int32_t across;  ///< groups of 16 outputs
  int32_t tiles;   ///< of tokens at most
};

struct Args {
  Item item[kMostProducts];
  int32_t products, pieces, slots, slot_bytes, side_bytes;
  int32_t piece_columns;  ///< of a slot at most: whole rows where they fit, as small copies cost much
  int32_t group_warps;    ///< 4, 8 or 16
  int32_t items;          ///< at most
  int32_t n_tiles;        ///< of 8 tokens: 1, 2 or 4
};

__device__ __forceinline__ int tiles_there(const Item& item) {
  return item.product.plan.tiles != nullptr ? *item.product.plan.tile_count : item.tiles;
}

/// An item of the launch: which product, which tile of tokens, which 16 outputs. Goes on without divisions.
struct TokenSlot {
  int32_t product, tile, row;  ///< row: groups of 16 outputs
  int32_t across, first_tiles;

  /// first_tiles: tiles of the first product.
  __device__ __forceinline__ TokenSlot(const Args& p, int index, int first_tiles) : first_tiles(first_tiles) {
    const int first_count = first_tiles * p.item[0].across;
    product = p.products > 1 && index >= first_count ? 1 : 0;
    if (product == 1) index -= first_count;
    across = p.item[product].across;
    tile = index / across, row = index - tile * across;
  }
  __device__ __forceinline__ void advance(const Args& p, int count) {
    for (row += count; row >= across;) {
      row -= across;
      if (++tile == first_tiles && product < p.products - 1) product = 1, tile = 0, across = p.item[1].across;
    }
  }
};

#if __CUDA_ARCH__ >= 900

/// What a lane copies of whole rows: a plane of a side.
struct Copy {
  const uint8_t* base;  ///< null: nothing
  uint32_t to, bytes;   ///< in a slot
  int32_t row_bytes;

  template <bool kGated>
  __device__ __forceinline__ static Copy of_lane(const Item& item, int side_bytes) {
    const int lane = threadIdx.x % 32, side = lane / 4, plane = lane % 4;
    if (side >= (kGated ? 2 : 1)) return {nullptr, 0, 0, 0};
    const Matrix& m = side == 0 ? item.product.weight : item.product.up;
    const uint8_t* const base = plane == 0 ? m.codes : plane == 1 ? m.high : plane == 2 ? m.scale : m.super;
    const int row_bytes = item.planes.row_bytes[plane];
    return {row_bytes > 0 ? base + m.first_row * row_bytes : nullptr,
            static_cast<uint32_t>(side * side_bytes + item.planes.offset[plane]),
            static_cast<uint32_t>(kRows * row_bytes), row_bytes};
  }
};

/// Bytes of a slot's rows, both sides and all planes.
template <bool kGated>
__device__ __forceinline__ uint32_t item_bytes(const Item& item, int piece) {
  uint32_t bytes = 0;
#pragma unroll
  for (int plane = 0; plane < 4; ++plane) {
    // Of the last piece less is there; pieces of whole 256 columns keep every plane's bytes whole.
    const int all = item.planes.row_bytes[plane], most = item.planes.piece_bytes[plane];
    bytes += min(most, all - piece * most);
  }
  return bytes * kRows * (kGated ? 2 : 1);
}

/// Copies of a piece of a slot's rows. The lanes share them.
template <bool kGated>
__device__ __forceinline__ void bring(const Item& item, int64_t matrix, int row, int piece, uint32_t slot,
                                      int side_bytes, uint32_t full) {
  const int lane = threadIdx.x % 32, side = lane / kRows, at = lane % kRows;
  if (side >= (kGated ? 2 : 1)) return;
  const Planes& planes = item.planes;
  const Matrix& m = side == 0 ? item.product.weight : item.product.up;
  const uint8_t* const base[4] = {m.codes, m.high, m.scale, m.super};
  const int64_t first = m.row(matrix, row) + at;
#pragma unroll
  for (int plane = 0; plane < 4; ++plane) {
    if (planes.row_bytes[plane] == 0) continue;
    const int size =
        min(planes.piece_bytes[plane], planes.row_bytes[plane] - piece * planes.piece_bytes[plane]);
    copy_bulk(slot + side * side_bytes + planes.offset[plane] + at * planes.piece_bytes[plane],
              base[plane] + first * planes.row_bytes[plane] + int64_t{piece} * planes.piece_bytes[plane],
              static_cast<uint32_t>(size), full);
  }
}

__device__ __forceinline__ void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

#endif

/// Sums of a warp that have to meet: bytes.
constexpr int reduction_bytes(int n_tiles, bool gated) {
  return kConsumerWarps * n_tiles * (gated ? 2 : 1) * 4 * 32 * 4;
}
constexpr int token_slots_bytes(int n_tiles) {
  return kConsumerWarps / 4 * n_tiles * kNTileTokens * static_cast<int>(sizeof(tiles::TokenSlot));
}

}  // namespace stream

/// kType: what the weights are of; F32: one of the family's, told at run time.
template <Family kFamily, int kNTiles, bool kGated, quant::Type kType>
__global__ void __launch_bounds__(stream::kThreads, 1)
    multiply_stream(const Timestamps timestamps, const __grid_constant__ stream::Args p) {
#if __CUDA_ARCH__ >= 900
  using namespace stream;
  constexpr int kSides = kGated ? 2 : 1, kSums = kSides * kNTiles * 4;
  extern __shared__ __align__(128) char stream_shared[];
  __shared__ __align__(8) uint64_t barriers[2 * kMostSlots];
  float* const reduction = reinterpret_cast<float*>(stream_shared + p.slots * p.slot_bytes);
  tiles::TokenSlot* const all_places = reinterpret_cast<tiles::TokenSlot*>(
      stream_shared + p.slots * p.slot_bytes + reduction_bytes(kNTiles, kGated));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t full = shared_address(barriers), empty = full + 8 * kMostSlots;
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.slots; ++i)
      barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, p.group_warps);
    barrier_init_fence();
  }
  __syncthreads();

  const bool known = p.item[0].product.plan.tiles == nullptr;
  if (!known || warp < kConsumerWarps) pdl.wait();
  const int first_tiles = tiles_there(p.item[0]);
  const int count =
      first_tiles * p.item[0].across + (p.products > 1 ? tiles_there(p.item[1]) * p.item[1].across : 0);
  const int begin = static_cast<int>(int64_t{count} * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(int64_t{count} * (blockIdx.x + 1) / gridDim.x);

  if (warp == kConsumerWarps) {
    int slot = 0;
    uint32_t phase = 1;
    if (begin >= end) return;
    stream::TokenSlot token_slot(p, begin, first_tiles);
    const auto matrix_of = [&](const stream::TokenSlot& at) {
      return tiles::tile_of(p.item[at.product].product.plan, at.tile).matrix;
    };
    const uint32_t slots = shared_address(stream_shared);
    int matrix = matrix_of(token_slot), left = end - begin;
    while (left > 0) {  // tile by tile; the next one's matrix is asked for before its time
      const Item& item = p.item[token_slot.product];
      const int here = min(left, token_slot.across - token_slot.row), row = token_slot.row;
      token_slot.advance(p, here), left -= here;
      const int next = left > 0 ? matrix_of(token_slot) : 0;
      const Copy copy = Copy::of_lane<kGated>(item, p.side_bytes);
      const uint8_t* from = copy.base;
      const Matrix& m = lane / 4 == 0 ? item.product.weight : item.product.up;
      if (from != nullptr) from += (matrix * m.matrix_rows + row * kRows) * copy.row_bytes;
      const uint32_t whole = item_bytes<kGated>(item, 0);
      for (int i = 0; i < here; ++i) {
        for (int piece = 0; piece < p.pieces; ++piece) {
          const uint32_t here_full = full + 8 * slot, to = slots + static_cast<uint32_t>(slot * p.slot_bytes);
          barrier_wait(empty + 8 * slot, phase);
          if (lane == 0) barrier_expect(here_full, p.pieces == 1 ? whole : item_bytes<kGated>(item, piece));
          __syncwarp();
          if (p.pieces > 1) {
            bring<kGated>(item, matrix, (row + i) * kRows, piece, to, p.side_bytes, here_full);
          } else if (from != nullptr) {
            copy_bulk(to + copy.to, from, copy.bytes, here_full);
            from += copy.bytes;
          }
          if (++slot == p.slots) slot = 0, phase ^= 1;
        }
      }
      matrix = next;
    }
    return;
  }

  const int groups = kConsumerWarps / p.group_warps, group = warp / p.group_warps;
  const int along = warp % p.group_warps, group_threads = p.group_warps * 32;
  const int thread = along * 32 + lane, g = lane / 4, t = lane % 4;
  tiles::TokenSlot* const token_slots = all_places + group * kNTiles * kNTileTokens;
  int at_tile = -1, at_product = -1;
  uint32_t x[kNTiles];  // where tokens begin, in units of 16 bytes
  int slot = 0;         // of this group's next piece, and how often the ring has gone round before it
  uint32_t phase = 0;
  const auto advance = [&](int count) {
    for (slot += count; slot >= p.slots; slot -= p.slots) phase ^= 1;
  };
  advance(group * p.pieces);
  stream::TokenSlot token_slot(p, begin + group, first_tiles);
  for (int index = begin + group; index < end;
       index += groups, token_slot.advance(p, groups), advance((groups - 1) * p.pieces)) {
    const Item& item = p.item[token_slot.product];
    const Product& product = item.product;
    const int chunks = product.tokens.chunks;
    const auto* const tokens = reinterpret_cast<const uint4*>(product.tokens.data);
    if (token_slot.tile != at_tile || token_slot.product != at_product) {
      at_tile = token_slot.tile, at_product = token_slot.product;
      const TokenTile tile = tiles::tile_of(product.plan, token_slot.tile);
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        tiles::Token token =
            tiles::token_of(product.plan, tile, max(0, min(n * kNTileTokens + g, tile.count - 1)));
        if (token.pair < 0) token.slot = 0;  // a hole of the list: some row, whose product nobody stores
        x[n] = static_cast<uint32_t>(token.slot) * static_cast<uint32_t>(chunks) * (kChunkColumns / 8) +
               static_cast<uint32_t>(t);
      }
      for (int i = thread; i < kNTiles * kNTileTokens; i += group_threads)
        token_slots[i] = tiles::place_of(product, tile, i);
    }

    float sum[kSides][kNTiles][4] = {};
    for (int piece = 0; piece < p.pieces; ++piece, advance(1)) {
      const int columns = min(product.weight.columns - piece * p.piece_columns, p.piece_columns);
      const int first_chunk = piece * (p.piece_columns / kChunkColumns);
      const int here = (columns + kChunkColumns - 1) / kChunkColumns;
      const uint8_t* const base = reinterpret_cast<const uint8_t*>(stream_shared) + slot * p.slot_bytes;
      Matrix side[kSides];
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        const uint8_t* const from = base + s * p.side_bytes;
        side[s] = s == 0 ? product.weight : product.up;
        if constexpr (kType != quant::Type::F32) side[s].type = kType;
        side[s].codes = from + item.planes.offset[0], side[s].high = from + item.planes.offset[1];
        side[s].scale = from + item.planes.offset[2], side[s].super = from + item.planes.offset[3];
        side[s].columns = min(product.weight.columns, p.piece_columns);
      }
      bool arrived = false;
      for (int c = along; c < here; c += p.group_warps) {
        // All of the chunk's tokens at once, or those of the next quarter while this one is multiplied.
        constexpr int kQuarters = kNTiles * kSides <= 2 ? 4 : 2;
        uint4 b[kQuarters][kNTiles];
        const auto load_tokens = [&](int j) {
#pragma unroll
          for (int n = 0; n < kNTiles; ++n) {
            b[j % kQuarters][n] = __ldg(
                tokens + (x[n] + static_cast<uint32_t>((first_chunk + c) * (kChunkColumns / 8) + j * 4)));
          }
        };
#pragma unroll
        for (int j = 0; j < kQuarters; ++j) load_tokens(j);
        if (!arrived) barrier_wait(full + 8 * slot, phase), arrived = true;
        Block<kFamily> block[kSides][2];
        fragments::Affine affine[kSides][2];
#pragma unroll
        for (int s = 0; s < kSides; ++s) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            // Beyond the last block tokens are zeroes.
            block[s][h].template load<fragments::Space::Shared>(side[s], 8 * h + g,
                                                                min(c * 4 + t, columns / 32 - 1), true);
            affine[s][h] = block[s][h].affine(side[s]);
          }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int s = 0; s < kSides; ++s) {
            uint32_t low[4], high[4];
            block[s][0].pairs(side[s], affine[s][0], j, low);
            block[s][1].pairs(side[s], affine[s][1], j, high);
            const uint32_t first[4] = {low[0], high[0], low[1], high[1]},
                           second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
            for (int n = 0; n < kNTiles; ++n) {
              const uint4& token = b[j % kQuarters][n];
              mma_16x8x16(sum[s][n], first, token.x, token.y);
              mma_16x8x16(sum[s][n], second, token.z, token.w);
            }
          }
          if (j + kQuarters < 4) load_tokens(j + kQuarters);
        }
      }
      if (!arrived) barrier_wait(full + 8 * slot, phase);  // nothing of it is this warp's
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * slot);
    }

#pragma unroll
    for (int i = 0; i < kSums; ++i)
      reduction[(warp * kSums + i) * 32 + lane] = sum[i / (kNTiles * 4)][i / 4 % kNTiles][i % 4];
    group_barrier(group, group_threads);
    const float* const mine = reduction + group * p.group_warps * kSums * 32;
    const auto total = [&](int i) {
      float value = mine[i];
      for (int k = 1; k < p.group_warps; ++k) value += mine[k * kSums * 32 + i];
      return value;
    };
    // Sum i of lane l lies at 32 i + l: n-tile i / 4; i / 2 % 2 says which of two rows, i % 2 which token.
    const auto finish_all = [&]<bool kPlain>() {
      for (int i = thread; i < kNTiles * 4 * 32; i += group_threads) {
        const int of = i / 32, l = i % 32;
        const tiles::TokenSlot to = token_slots[of / 4 * kNTileTokens + 2 * (l % 4) + of % 2];
        const int n = token_slot.row * kRows + l / 4 + of / 2 % 2 * 8;
        const float sum = total(i), up = kGated ? total(i + kNTiles * 4 * 32) : 0.0f;
        if (to.out >= 0)
          product.sink.out.data[to.out + n] = tiles::result_of<kPlain>(product, to, n, sum, up);
      }
    };
    product.is_plain() ? finish_all.template operator()<true>() : finish_all.template operator()<false>();
    group_barrier(group, group_threads);
  }
#endif
}

/// Starts the kernel for weights of one family. Defined by gemm_instances.cuh.
template <Family kFamily>
void launch_stream(const stream::Args& args, const Context& context);

}  // namespace sluice::backend::cuda
