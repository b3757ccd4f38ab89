// Expanded latent attention by mma.sync within 99 KB of shared memory (any processor since sm_80): what
// mla_expand.cu and mla_expanded_attend.cu do by wgmma, over the same keys, values and operands
// (attention/mla_expanded.cuh).
//
// expand  a thread block takes 128 positions of a head's keys or values, 64 columns of the rank at a time:
//         two of them in shared memory, one on its way (cp.async); a warp 32 positions x half of the columns.
// attend  a thread block takes a head of 128 rows, a warp 16 of them, over their whole context with a
//         running softmax (online softmax: Milakov and Gimelshein 2018; its order as in FlashAttention-2).
//         Shared memory holds the queries and a piece of keys and one of values: values come under the
//         scores, the next keys under the products of values.
//
// Bound by the tensor cores of processors with 64 products a cycle and unit (RTX 3090, 4090); on an H200,
// which takes four times as many, by shared memory, which feeds a warp's 16 rows 2 to 3 cycles a product.
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/attention/mla_expanded.h"
#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 256;

/// Copies rows of 128 bytes that lie together, eight threads each.
template <int kRows>
__device__ __forceinline__ void copy_rows(uint32_t to, const char* from) {
  static_assert(kRows % 32 == 0);
  const int at = threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < kRows * kExpandBlock; i += kThreads * 16) copy_async(to + i + at, from + i + at);
}

// --- products ---

constexpr int kChunks = kExpandRank / 64, kLatentBytes = kExpandTile * kExpandBlock;
constexpr int stage_bytes(int columns) { return kLatentBytes + columns * kExpandBlock; }

/// A tile's 128 positions; latents and weights: of all columns of the rank, to: the head's keys or values.
template <int kColumns, int kKeys>
__device__ __forceinline__ void expand(char* to, uint32_t stages, const char* latents, const char* weights) {
  constexpr int kMine = kColumns / 2, kStageBytes = stage_bytes(kColumns);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int rows = warp / 2 * 32, columns = warp % 2 * kMine;
  const auto bring = [&](int chunk) {
    const uint32_t at = stages + chunk % 2 * kStageBytes;
    copy_rows<kExpandTile>(at, latents + chunk * kLatentBytes);
    copy_rows<kColumns>(at + kLatentBytes, weights + chunk * kColumns * kExpandBlock);
    commit_copies();
  };
  bring(0);
  float sum[2][kMine / 8][4] = {};
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    wait_copies<0>();
    __syncthreads();  // it is there, and everybody has done with the one before
    if (chunk + 1 < kChunks) bring(chunk + 1);
    const uint32_t at = stages + chunk % 2 * kStageBytes;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t latent[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_matrices(latent[i], at + swizzled_unit(rows + i * 16 + lane % 16, 2 * s + lane / 16));
#pragma unroll
      for (int n = 0; n < kMine / 16; ++n) {
        uint32_t weight[4];  // columns 0..7 of the rank's 0..7 and 8..15, columns 8..15 likewise
        const int column = columns + n * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(weight, at + kLatentBytes + swizzled_unit(column, 2 * s + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_16x8x16(sum[i][2 * n], latent[i], weight[0], weight[1]);
          mma_16x8x16(sum[i][2 * n + 1], latent[i], weight[2], weight[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int position = static_cast<int>(blockIdx.y) * kExpandTile + rows + i * 16 + g + 8 * h;
      char* const tile = to + int64_t{position / kKeys} * (kColumns / 64) * kKeys * kExpandBlock;
#pragma unroll
      for (int b = 0; b < kMine / 32; ++b) {
        const int block = columns / 32 + b;  // of 32 columns
        const auto pair = [&](int n) {
          return pack_halves(sum[i][4 * b + n][2 * h], sum[i][4 * b + n][2 * h + 1]);
        };
        *reinterpret_cast<uint4*>(tile + block / 2 * kKeys * kExpandBlock +
                                  swizzled_unit(position % kKeys, block % 2 * 4 + t)) = {pair(0), pair(1),
                                                                                         pair(2), pair(3)};
      }
    }
  }
}

/// grid: (keys and values of the group's heads, tiles of positions)
template <int kNope, int kValue>
__global__ void __launch_bounds__(kThreads, 1)
    expand_kernel(const Timestamps timestamps, const __grid_constant__ Expanded e) {
  constexpr int kKeys = expanded_keys(kValue);
  extern __shared__ __align__(128) char expand_shared[];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int tile = static_cast<int>(blockIdx.y), slot = static_cast<int>(blockIdx.x) / 2;
  if (tile * kExpandTile >= e.step.prompts->positions) return;
  const uint32_t stages = shared_address(expand_shared);
  const char* const latents = e.latents + int64_t{tile} * kChunks * kLatentBytes;
  const char* const weights = e.weights + (e.first_head + slot) * e.weights_of_head();
  if (blockIdx.x % 2 == 1) {
    expand<kValue, kKeys>(e.values + slot * e.capacity * kValue * 2, stages, latents,
                          weights + kNope * kExpandRank * 2);
  } else {
    expand<kNope, kKeys>(e.keys + slot * e.capacity * kNope * 2, stages, latents, weights);
  }
}

template <int kNope, int kValue>
void launch_expand(const Expanded& e, const Context& context) {
  constexpr int kBytes = 2 * stage_bytes(std::max(kNope, kValue));
  static_assert(kBytes <= kMostShared);
  launch(context, expand_kernel<kNope, kValue>,
         {dim3(static_cast<unsigned>(2 * e.slots), static_cast<unsigned>(e.capacity / kExpandTile)),
          dim3(kThreads), kBytes},
         e);
}

// --- attention ---

template <int kNopeColumns, int kValueColumns>
struct Shape {
  static constexpr int kNope = kNopeColumns, kValue = kValueColumns, kWidth = kNope + kExpandRotated;
  static constexpr int kKeys = expanded_keys(kValue);         ///< positions of a tile in global memory
  static constexpr int kPiece = kValue > 128 ? 32 : 64;       ///< and of a piece in shared memory
  static constexpr int kBlockBytes = kPiece * kExpandBlock;   ///< of 64 columns
  static constexpr int kQueryBytes = kHalfTile * kWidth * 2;  ///< of half a tile of rows
  static constexpr int kKeysAt = 2 * kQueryBytes, kValuesAt = kKeysAt + kPiece * kWidth * 2,
                       kFactorsAt = kValuesAt + kPiece * kValue * 2,
                       kSharedBytes = kFactorsAt + kExpandTile * 4;
  static_assert(kSharedBytes <= kMostShared && kKeys % kPiece == 0);
};

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const Timestamps timestamps, const __grid_constant__ AttendExpanded p,
                  const __grid_constant__ RopeTable rope) {
  constexpr int kPiece = S::kPiece;
  extern __shared__ __align__(128) char attend_shared[];
  float* const factors = reinterpret_cast<float*>(attend_shared + S::kFactorsAt);
  const PdlLink pdl(timestamps);
  pdl.wait();
  // Later rows see more: they begin first.
  const int item = static_cast<int>(gridDim.x - 1 - blockIdx.x), number = item / p.e.slots;
  const int slot = item % p.e.slots, head = p.e.first_head + slot;
  if (number >= p.e.step.prompts->tiles) return;
  const RowTile tile(p.e, number);
  const uint32_t base = shared_address(attend_shared), keys = base + S::kKeysAt, values = base + S::kValuesAt;

  const int64_t first = slot * p.e.capacity + tile.segment.offset;
  const auto bring_keys = [&](int from) {
    const char* const of_head =
        p.e.keys + (first + from / S::kKeys * S::kKeys) * S::kNope * 2 + from % S::kKeys * kExpandBlock;
#pragma unroll
    for (int b = 0; b < S::kNope / 64; ++b)
      copy_rows<kPiece>(keys + b * S::kBlockBytes, of_head + b * S::kKeys * kExpandBlock);
    copy_rows<kPiece>(keys + S::kNope / 64 * S::kBlockBytes,
                      p.e.rotated + int64_t{tile.segment.offset + from} * kExpandBlock);
    commit_copies();
  };
  const auto bring_values = [&](int from) {
    const char* const of_head =
        p.e.values + (first + from / S::kKeys * S::kKeys) * S::kValue * 2 + from % S::kKeys * kExpandBlock;
#pragma unroll
    for (int b = 0; b < S::kValue / 64; ++b)
      copy_rows<kPiece>(values + b * S::kBlockBytes, of_head + b * S::kKeys * kExpandBlock);
    commit_copies();
  };
  bring_keys(0);
  bring_queries<S>(p, rope, tile, head, attend_shared, factors);
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp * 16, mine = row + lane / 4;
  const uint32_t queries = base + row / kHalfTile * S::kQueryBytes;
  const int most = tile.limit(row + 15);  // positions that any of the warp's rows sees
  TwoRows<kPiece, S::kValue> rows{.limit = {tile.limit(mine), tile.limit(mine + 8)},
                                  .least = tile.limit(row),
                                  .factor = {factors[mine], factors[mine + 8]},
                                  .sum = {}};

  for (int from = 0; from < tile.longest; from += kPiece) {
    wait_copies<0>();
    __syncthreads();  // keys are there, and everybody has done with the values before
    bring_values(from);
    uint32_t weight[kPiece / 16][4];  // as the first operand
    if (from < most) {
      float score[kPiece / 8][4] = {};
#pragma unroll
      for (int s = 0; s < S::kWidth / 16; ++s) {
        uint32_t query[4];
        load_matrices(query, queries + s / 4 * kHalfTile * kExpandBlock +
                                 swizzled_unit(row % kHalfTile + lane % 16, s % 4 * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < kPiece / 16; ++n) {
          uint32_t key[4];  // positions 0..7 columns 0..7 and 8..15, positions 8..15 likewise
          load_matrices(key, keys + s / 4 * S::kBlockBytes +
                                 swizzled_unit(n * 16 + lane / 16 * 8 + lane % 8, s % 4 * 2 + lane / 8 % 2));
          mma_16x8x16(score[2 * n], query, key[0], key[1]);
          mma_16x8x16(score[2 * n + 1], query, key[2], key[3]);
        }
      }
      rows.soften(score, from);
      rows.pack(weight, score);
      rows.rescale();
    }
    wait_copies<0>();
    __syncthreads();  // values are there, and everybody has done with the keys
    if (from + kPiece < tile.longest) bring_keys(from + kPiece);
    if (from >= most) continue;
#pragma unroll
    for (int s = 0; s < kPiece / 16; ++s) {
#pragma unroll
      for (int n = 0; n < S::kValue / 16; ++n) {
        uint32_t value[4];  // positions 0..7 and 8..15 of columns 0..7, then of columns 8..15
        load_matrices_transposed(value, values + n / 4 * S::kBlockBytes +
                                            swizzled_unit(16 * s + lane % 16, n % 4 * 2 + lane / 16));
        mma_16x8x16(rows.sum[2 * n], weight[s], value[0], value[1]);
        mma_16x8x16(rows.sum[2 * n + 1], weight[s], value[2], value[3]);
      }
    }
  }
  rows.store(p, tile, mine, head);
}

template <typename S>
void launch_attend(const AttendExpanded& args, const RopeTable& rope, const Context& context) {
  // A segment's last tile may have one row.
  const int64_t tiles = context.step_rows / kExpandTile + most_segments(context.step_rows);
  launch(context, attend_kernel<S>,
         {dim3(static_cast<unsigned>(tiles * args.e.slots)), dim3(kThreads), S::kSharedBytes}, args, rope);
}

}  // namespace

void mla_expand_sm80(const Expanded& e, const Context& context) {
  return e.value == 256 ? launch_expand<192, 256>(e, context) : launch_expand<128, 128>(e, context);
}

void mla_expanded_attend_sm80(const AttendExpanded& args, const RopeTable& rope, const Context& context) {
  return args.e.value == 256 ? launch_attend<Shape<192, 256>>(args, rope, context)
                             : launch_attend<Shape<128, 128>>(args, rope, context);
}

}  // namespace sluice::backend::cuda
