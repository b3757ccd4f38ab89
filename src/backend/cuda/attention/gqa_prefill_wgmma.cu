// Grouped attention of stretches of rows by wgmma (sm_90a; attention/gqa.cuh, attention/wgmma_attention.cuh):
// a thread block takes a group's heads of some rows, 128 queries, over their whole context. Two warpgroups
// take 64 queries each; a third one brings tiles of 128 positions from the cache's pages, two warps keys and
// two values, and makes halves of a cache in eight bits on the way. While one group is at its softmax the
// other one multiplies. A row's bits depend on its own context alone.
//
// Bound by the tensor cores.
#include "backend/cuda/attention/gqa.cuh"
#include "backend/cuda/attention/wgmma_attention.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using program::kPageRows;

constexpr int kThreads = 384;

template <int kColumns>
struct Shape {
  static constexpr int kWidth = kColumns, kValue = kColumns, kKeys = 128;
  static constexpr int kKeyBytes = kKeys * kWidth * 2, kValueBytes = kKeys * kValue * 2;
  static constexpr int kQueryBytes = kHalfTile * kWidth * 2;  ///< of a warpgroup
  static constexpr int kKeysAt = 2 * kQueryBytes, kValuesAt = kKeysAt + 2 * kKeyBytes,
                       kFactorsAt = kValuesAt + 2 * kValueBytes, kBarriersAt = kFactorsAt + kTileQueries * 4,
                       kSharedBytes = kBarriersAt + 64 + 1024;
};

#ifdef SLUICE_WGMMA

__device__ __forceinline__ void make_visible() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Where a unit of 16 bytes of row `row` lies in blocks of 64 columns of kRows rows.
template <int kRows>
__device__ __forceinline__ int unit_in_blocks(int row, int unit) {
  return unit / 8 * kRows * kExpandBlock + swizzled_unit(row, unit % 8);
}

/// One of two warps: every other position of a tile's keys or values, those from `count` on as zeroes.
template <int kColumns, bool kCoded>
__device__ __forceinline__ void bring_tile(const AttendArgs& p, const AttendTile& tile, int column, int from,
                                           char* to) {
  constexpr int kKeys = Shape<kColumns>::kKeys, kUnits = kColumns / (kCoded ? 16 : 8);
  constexpr int kRowsAtOnce = 64 / kUnits;  // of both warps
  const int thread = threadIdx.x % 64, unit = thread % kUnits, count = tile.longest() - from;
  const uint32_t address = shared_address(to);
  for (int half = 0; half < kKeys / kPageRows; ++half) {
    const int first = half * kPageRows;
    // A page that is not there is the one before.
    const char* const page =
        p.page(tile.first, (tile.begin + min(from + first, tile.longest() - 1)) / kPageRows);
    if constexpr (kCoded) {
      const int scale_at = p.cache.scales_at + (column + unit * 16) / kCacheRun * 2;
      constexpr int kEach = kPageRows / kRowsAtOnce, kBatch = std::min(kEach, 8);
#pragma unroll
      for (int begin = 0; begin < kEach; begin += kBatch) {
        uint4 codes[kBatch];
        uint16_t scales[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int row = (begin + i) * kRowsAtOnce + thread / kUnits;
          const char* const at = page + int64_t{row} * p.cache.row_bytes;
          const bool there = first + row < count;
          codes[i] = there ? __ldcg(reinterpret_cast<const uint4*>(at + column + unit * 16)) : uint4{};
          scales[i] = there ? __ldcg(reinterpret_cast<const unsigned short*>(at + scale_at)) : uint16_t{0};
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int row = first + (begin + i) * kRowsAtOnce + thread / kUnits;
          const SixteenHalves numbers = halves_of_codes(codes[i], __ushort_as_half(scales[i]));
          *reinterpret_cast<uint4*>(to + unit_in_blocks<kKeys>(row, 2 * unit)) = numbers.low;
          *reinterpret_cast<uint4*>(to + unit_in_blocks<kKeys>(row, 2 * unit + 1)) = numbers.high;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPageRows / kRowsAtOnce; ++i) {
        const int row = i * kRowsAtOnce + thread / kUnits;
        const bool there = first + row < count;
        copy_async(address + unit_in_blocks<kKeys>(first + row, unit),
                   page + column * 2 + unit * 16 + (there ? int64_t{row} * p.cache.row_bytes : 0), there);
      }
    }
  }
  if (!kCoded) commit_copies(), wait_copies<0>();
  make_visible();
}

/// Two warps: tile after tile of keys or values. before: tiles that have passed through the ring.
template <int kColumns, bool kCoded>
__device__ __forceinline__ void bring_tiles(const AttendArgs& p, const AttendTile& tile, int column, char* to,
                                            uint32_t full, uint32_t empty, int before) {
  using S = Shape<kColumns>;
  for (int from = 0, i = before; from < tile.longest(); from += S::kKeys, ++i) {
    const int stage = i % 2;
    barrier_wait(empty + 8 * stage, (i / 2 & 1) ^ 1);
    bring_tile<kColumns, kCoded>(p, tile, column, from, to + stage * S::kKeyBytes);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full + 8 * stage);
  }
}

/// A warpgroup's queries, scaled to halves; a warp a query.
template <int kColumns>
__device__ __forceinline__ void bring_queries(const AttendArgs& p, const AttendTile& tile, int group,
                                              int first, char* to, float* factors) {
  constexpr int kAtOnce = 8, kEach = kColumns / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int from = 0; from < kHalfTile; from += 4 * kAtOnce) {
    float v[kAtOnce][kEach];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + from + 4 * k + warp;
      const float* const at = p.q(tile.row(i), group * p.heads_a_group + tile.head(i)) + lane * kEach;
#pragma unroll
      for (int c = 0; c < kEach; ++c) v[k][c] = __ldcg(at + c);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = from + 4 * k + warp;
      float largest = 0;
#pragma unroll
      for (int c = 0; c < kEach; ++c) largest = fmaxf(largest, fabsf(v[k][c]));
      const float unscale = query_unscale(lane_max(largest)), scale = 1.0f / unscale;
      char* const at = to + unit_in_blocks<kHalfTile>(i, lane * kEach / 8) + lane * kEach % 8 * 2;
#pragma unroll
      for (int c = 0; c < kEach; c += 2)
        *reinterpret_cast<uint32_t*>(at + c * 2) = pack_halves(v[k][c] * scale, v[k][c + 1] * scale);
      if (lane == 0) factors[i] = unscale * p.scale_log2;
    }
  }
}

#endif

/// grid: (groups of heads, tiles of rows, chunks of their context)
template <int kColumns, bool kCoded>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const Timestamps timestamps, const __grid_constant__ AttendArgs p) {
#ifdef SLUICE_WGMMA
  using S = Shape<kColumns>;
  extern __shared__ char attend_shared[];
  char* const shared = attend_shared + (1024 - shared_address(attend_shared) % 1024) % 1024;
  const uint32_t base = shared_address(shared), barriers = base + S::kBarriersAt;
  const Ring ring{base + S::kKeysAt, base + S::kValuesAt, barriers,
                  barriers + 16,     barriers + 32,       barriers + 48};
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) barrier_init(barriers + 8 * i, 2);
    barrier_init_fence();
  }
  // Later rows see more: they begin first.
  const int from = static_cast<int>(gridDim.y - 1 - blockIdx.y) * p.tile_rows(), rows = p.step.header->rows;
  const int end = min(from + p.tile_rows(), rows), group = static_cast<int>(blockIdx.x);
  const int chunk = static_cast<int>(blockIdx.z);
  AttendTile tile = p.together ? chunk_tile(p, from, end, chunk) : next_tile(p, from, end, rows);
  __syncthreads();
  pdl.wait();
  int before = 0;
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const bool values = threadIdx.x >= 320;
    const int column = p.first_column(group, values);
    for (; tile.first < end; tile = next_tile(p, tile.end, end, rows)) {
      bring_tiles<kColumns, kCoded>(p, tile, column, shared + (values ? S::kValuesAt : S::kKeysAt),
                                    values ? ring.value_full : ring.key_full,
                                    values ? ring.value_empty : ring.key_empty, before);
      before += (tile.longest() + S::kKeys - 1) / S::kKeys;
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
  const int first = half * kHalfTile, mine = first + warp * 16 + lane / 4;
  float* const factors = reinterpret_cast<float*>(shared + S::kFactorsAt) + first;
  for (; tile.first < end; tile = next_tile(p, tile.end, end, rows)) {
    const int all = (tile.longest() + S::kKeys - 1) / S::kKeys;
    int tiles = 0;  // that the group's queries see
    if (first < tile.queries()) {
      bring_queries<kColumns>(p, tile, group, first, shared + half * S::kQueryBytes, factors);
      make_visible();
      asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
      tiles = (tile.limit(first + kHalfTile - 1) + S::kKeys - 1) / S::kKeys;
      TileAttention<S> attend{.ring = ring,
                              .queries = matrix_descriptor(base + half * S::kQueryBytes, 1024),
                              .tiles = tiles,
                              .before = before,
                              .rows = {.limit = {tile.limit(mine), tile.limit(mine + 8)},
                                       .least = tile.limit(first),
                                       .factor = {factors[mine - first], factors[mine - first + 8]}}};
      attend.run();
      if (p.together) {
        store_parts<kColumns, S::kKeys>(p, tile, group, mine, chunk, attend.rows);
      } else {
        store_rows<kColumns, S::kKeys>(p, tile, group, mine, attend.rows);
      }
    }
    for (int i = before + tiles; i < before + all; ++i) {  // only the other group's queries see them
      barrier_wait(ring.key_full + 8 * (i % 2), i / 2 & 1);
      TileAttention<S>::release(ring.key_empty + 8 * (i % 2));
      barrier_wait(ring.value_full + 8 * (i % 2), i / 2 & 1);
      TileAttention<S>::release(ring.value_empty + 8 * (i % 2));
    }
    before += all;
    // Nobody writes the next tile's queries while somebody reads these factors.
    asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
  }
#endif
}

template <int kColumns, bool kCoded>
void launch_tiles(const AttendArgs& args, const Context& context) {
  const int64_t tiles = (context.step_rows + args.tile_rows() - 1) / args.tile_rows();
  launch(context, attend_kernel<kColumns, kCoded>,
         {dim3(static_cast<unsigned>(args.groups), static_cast<unsigned>(tiles),
               static_cast<unsigned>(args.together ? args.chunks : 1)),
          dim3(kThreads), Shape<kColumns>::kSharedBytes},
         args);
}

}  // namespace

void attend_wgmma(const AttendArgs& args, const Context& context) {
  const bool coded = args.cache.coded > 0;
  if (args.q.columns == 64)
    return coded ? launch_tiles<64, true>(args, context) : launch_tiles<64, false>(args, context);
  return coded ? launch_tiles<128, true>(args, context) : launch_tiles<128, false>(args, context);
}

}  // namespace sluice::backend::cuda
