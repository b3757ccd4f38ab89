// Grouped attention of stretches of rows by mma.sync within 99 KB of shared memory (any processor since
// sm_80; attention/gqa.cuh). A thread block takes a group's heads of some rows, 128 queries of which each
// warp has 16, over their whole context with a running softmax (online softmax: Milakov and Gimelshein 2018;
// its order as in FlashAttention-2). Queries live in registers; two pieces of 64 positions, a page, take
// turns in shared memory, one on its way (cp.async) while the other is worked on. A cache in eight bits: a
// piece comes as it is and is made halves, while the next one comes.
//
// Bound by the tensor cores, on processors that have many of them by shared memory, which feeds a warp's 16
// queries.
#include "backend/cuda/attention/gqa.cuh"
#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 256, kPiece = program::kPageRows;
static_assert(kThreads / 32 * 16 == kTileQueries);

template <int kColumns, bool kCoded>
struct Shape {
  using Halves = HalfRows<kColumns>;
  using Codes = CodedRows<kColumns>;
  static constexpr int kHalfBytes = kPiece * Halves::kPitch, kPieceBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kPieceBytes + (kCoded ? kPiece * Codes::kPitch : kPieceBytes);
  static_assert(kSharedBytes <= (kColumns > 128 ? most_shared(90) : kMostShared));
};

template <int kColumns, bool kCoded>
__device__ __forceinline__ void attend_tile(const AttendArgs& p, const AttendTile& tile, int group, int chunk,
                                            char* shared) {
  using S = Shape<kColumns, kCoded>;
  using Halves = typename S::Halves;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = warp * 16 + lane / 4;
  const uint32_t base = shared_address(shared);
  const auto bring = [&](int from, int buffer) {
    const char* const rows = p.page(tile.first, (tile.begin + from) / kPiece);
    const int count = tile.longest() - from;
    if constexpr (kCoded) {
      S::Codes::template bring<kPiece, kThreads>(base + S::kPieceBytes, rows, p.cache.row_bytes, count, p,
                                                 group, threadIdx.x);
    } else {
      const uint32_t to = base + buffer * S::kPieceBytes;
      bring_halves<kColumns, kPiece, kThreads>(to, to + S::kHalfBytes, rows, p.cache.row_bytes, count, p,
                                               group, threadIdx.x);
    }
    commit_copies();
  };
  bring(0, 0);
  QueryOperands<kColumns, false> query;
  const auto place = [&](int i) { return p.q(tile.row(i), group * p.heads_a_group + tile.head(i)); };
  query.load({place(mine), place(mine + 8)});
  TwoRows<kPiece, kColumns> rows{.limit = {tile.limit(mine), tile.limit(mine + 8)},
                                 .least = tile.limit(warp * 16),
                                 .window = p.window,
                                 .lowest = p.window > 0 ? tile.limit(warp * 16 + 15) - p.window : 0,
                                 .factor = {query.unscale[0] * p.scale_log2, query.unscale[1] * p.scale_log2},
                                 .sum = {}};
  if (p.sinks != nullptr && chunk == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.largest[h] = p.sink(group * p.heads_a_group + tile.head(mine + 8 * h)) / rows.factor[h];
      rows.all[h] = lane % 4 == 0 ? 1.0f : 0.0f;
    }
  }
  // Positions that any of the warp's queries sees; none where the tile has no query for it.
  const int most = warp * 16 < tile.queries() ? tile.limit(warp * 16 + 15) : 0;

  int buffer = 0;
  for (int from = 0; from < tile.longest(); from += kPiece, buffer ^= kCoded ? 0 : 1) {
    wait_copies<0>();
    __syncthreads();  // it is there, and everybody has done with the one before
    if constexpr (kCoded) {
      S::Codes::template decode<kPiece, kThreads>(shared + S::kPieceBytes, shared, shared + S::kHalfBytes,
                                                  threadIdx.x);
      __syncthreads();
    }
    if (from + kPiece < tile.longest()) bring(from + kPiece, buffer ^ 1);
    if (from >= most) continue;
    const uint32_t keys = base + buffer * S::kPieceBytes, values = keys + S::kHalfBytes;
    float score[kPiece / 8][4] = {};
#pragma unroll
    for (int s = 0; s < kColumns / 16; ++s) {
#pragma unroll
      for (int n = 0; n < kPiece / 16; ++n) {
        uint32_t key[4];  // positions 0..7 columns 0..7 and 8..15, positions 8..15 likewise
        load_matrices(key, keys + Halves::unit(n * 16 + lane / 16 * 8 + lane % 8, 2 * s + lane / 8 % 2));
        mma_16x8x16(score[2 * n], query.first[s], key[0], key[1]);
        mma_16x8x16(score[2 * n + 1], query.first[s], key[2], key[3]);
      }
    }
    rows.soften(score, from);
    uint32_t weight[kPiece / 16][4];
    rows.pack(weight, score);
    rows.rescale();
#pragma unroll
    for (int s = 0; s < kPiece / 16; ++s) {
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t value[4];  // positions 0..7 and 8..15 of columns 0..7, then of columns 8..15
        load_matrices_transposed(value, values + Halves::unit(16 * s + lane % 16, 2 * n + lane / 16));
        mma_16x8x16(rows.sum[2 * n], weight[s], value[0], value[1]);
        mma_16x8x16(rows.sum[2 * n + 1], weight[s], value[2], value[3]);
      }
    }
  }
  __syncthreads();  // everybody has done with keys and values
  if (p.together) {
    store_parts<kColumns, kPiece>(p, tile, group, mine, chunk, rows);
  } else {
    store_rows<kColumns, kPiece>(p, tile, group, mine, rows);
  }
}

/// grid: (groups of heads, tiles of rows, chunks of their context)
template <int kColumns, bool kCoded>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const Timestamps timestamps, const __grid_constant__ AttendArgs p) {
  extern __shared__ __align__(128) char attend_shared[];
  const PdlLink pdl(timestamps);
  // Later rows see more: they begin first.
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * p.tile_rows(), rows = p.step.header->rows;
  const int end = min(first + p.tile_rows(), rows);
  const int chunk = static_cast<int>(blockIdx.z);
  AttendTile tile = p.together ? chunk_tile(p, first, end, chunk) : next_tile(p, first, end, rows);
  pdl.wait();
  for (; tile.first < end; tile = next_tile(p, tile.end, end, rows))
    attend_tile<kColumns, kCoded>(p, tile, static_cast<int>(blockIdx.x), chunk, attend_shared);
}

template <int kColumns, bool kCoded>
void launch_tiles(const AttendArgs& args, const Context& context) {
  const int64_t tiles = (context.step_rows + args.tile_rows() - 1) / args.tile_rows();
  launch(context, attend_kernel<kColumns, kCoded>,
         {dim3(static_cast<unsigned>(args.groups), static_cast<unsigned>(tiles),
               static_cast<unsigned>(args.together ? args.chunks : 1)),
          dim3(kThreads), Shape<kColumns, kCoded>::kSharedBytes},
         args);
}

}  // namespace

void attend_tiles(const AttendArgs& args, const Context& context) {
  const bool coded = args.cache.coded > 0;
  switch (args.q.columns) {
    case 64: return coded ? launch_tiles<64, true>(args, context) : launch_tiles<64, false>(args, context);
    case 80: return launch_tiles<80, false>(args, context);
    case 96: return launch_tiles<96, false>(args, context);
    case 256: return launch_tiles<256, false>(args, context);
    default: return coded ? launch_tiles<128, true>(args, context) : launch_tiles<128, false>(args, context);
  }
}

}  // namespace sluice::backend::cuda
