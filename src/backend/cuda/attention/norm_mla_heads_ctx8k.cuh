// What a block of norm_mla_heads_ctx8k.cu works on, and how that comes by TMA to its shared memory: its heads
// and its part of the context, rows of the cache, its rows of q and its share of k_b.
#pragma once

#include <cstddef>

#include "backend/cuda/attention/norm_mla_heads.cuh"
#include "backend/cuda/host/tensor_map.h"
#include "backend/cuda/prim/cluster.cuh"

namespace sluice::backend::cuda::first_half::ctx8k {

constexpr int kMostLowColumns = 1536;  // of the low-rank query
constexpr int kPage = static_cast<int>(program::kPageRows);
constexpr int kPiece = 144;                                            // positions, whole sixteens
constexpr int kHeads = 8;                                              // of a block at most
constexpr int kMostParts = 32;                                         // of a head's context
constexpr int kQuarters = 4, kQuarterSteps = kWidth / 16 / kQuarters;  // matrix steps of 16 columns
constexpr int kScoreStride = kPiece + 4, kWeightStride = kPiece + 8;
constexpr int kWarpColumns = kRank / kWarps;         // of values
constexpr int kPartGroups = kThreads / (kRank / 8);  // of threads that take every so manyth part
static_assert(kPiece % 16 == 0);

/// Rows of the cache come by TMA copies of eight (host/tensor_map.h): nine blocks of 64 columns, swizzled.
constexpr int kEight = kMapRows, kEightBytes = kEight * HalfRow::kBytes, kBlocks = kWidth / 64;
static_assert(kPage % kEight == 0 && kBlocks * kQuarters == kWidth / 16, "a quarter: a step of each block");

/// Rows of q that have their own place: 43 of 768 columns in Q4_0 (GLM-4.7-Flash).
constexpr int kCopiedBytes = 43 * 768 / 32 * 18;

/// A block's shared memory.
struct Shared {
  union {
    struct {
      float q_norm[kMostLowColumns];
      char row[activation_bytes(kMostColumns)];
      alignas(128) float norm[kMostColumns];
      alignas(128) char q_rows[kCopiedBytes];
    };
    struct {  // once the queries are made
      alignas(16) char first[SplitQueries::kTileBytes], second[SplitQueries::kTileBytes];
      float scores[kQuarters * kHeads * kScoreStride];
      alignas(16) uint16_t weights[kHeads * kWeightStride];
      float shrink[kHeads];
    };
    float sums[kPartGroups][kRank];  // of the context, once the parts are out
  };
  alignas(16) char x[activation_bytes(kMostLowColumns)];  // the low-rank query
  char q_blocks[activation_bytes(32 * kWarps)];           // a share of queries, a copy a warp
  float q[kMostShares * kShare + kRotated];  // this block's queries: shares, then those to be rotated
  alignas(16) char context[activation_bytes(kRank)];
  alignas(16) char current[HalfRow::kBytes];  // the row that this step adds, as the cache holds it
  alignas(16) char earlier[HalfRow::kBytes];  // the step's other row, where this one sees it
  float values[kMostValues];
  SinCos angles[kRotated / 2], earlier_angles[kRotated / 2];
  alignas(16) float partial[3][kWarps];
  uint32_t largest;       // of this block's latent queries: bits of a float
  uint32_t launch_count;  // launches of this kernel before this one
  alignas(8) uint64_t rows_there, k_there, q_there;
  alignas(1024) char rows[kPiece * HalfRow::kBytes];
};
static_assert(sizeof(Shared) <= 226 * 1024, "of compute capabilities 9.0 and 10.0");

__device__ inline Shared& shared() {
  extern __shared__ __align__(1024) char eights[];  // where dynamic_shared begins
  return *reinterpret_cast<Shared*>(eights);
}
/// 16 bytes of a row of the piece.
__device__ inline uint4& unit_of(int row, int unit) {
  return *reinterpret_cast<uint4*>(shared().rows + row / kEight * kEightBytes + unit / 8 * 1024 +
                                   row % kEight * 128 + (unit % 8 ^ row % kEight) * 16);
}
/// What this kernel gets besides: how TMA finds rows of the cache, and shares of k_b; where rows of q lie in
/// shared memory. early: not where rows of the cache will be, which need not wait for them.
struct LongArgs : Args {
  int q_at;
  bool early;
  CUtensorMap rows, n_tiles;
};

// What a thread has asked for by loads comes back in that order, slots of the mailbox behind weights; and a
// load takes a line of L1, of which large shared memory leaves few. So the block's weights come by TMA where
// they are of a common type.

template <typename One>
constexpr Type type_of() {
  if constexpr (requires { One::kType; }) return One::kType;
  return Type::F32;
}

/// A share of k_b: codes of 32 columns of each row, to where the norm's weights were.
template <typename One>
struct CopiedShare {
  static constexpr Type kType = type_of<One>();
  static constexpr bool kServes = kType == Type::Q4_0 || kType == Type::Q8_0;
  static constexpr int kBytes = kType == Type::Q8_0 ? 32 : 16;  ///< of a row
  static_assert(kBytes * kRank <= static_cast<int>(sizeof(Shared::norm)));

  /// One thread calls it, once the block has met behind the norm.
  __device__ static void ask(const LongArgs& args, int head, int share) {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = shared_address(&shared().k_there);
    pushes_from_here();
    barrier_expect(there, kBytes * kRank);
#pragma unroll
    for (int row = 0; row < kRank; row += kNTileRows) {
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared().norm) + row * kBytes),
          "l"(&args.n_tiles), "r"(share * kBytes), "r"(static_cast<int>(args.heads.k_b.row(head, row))),
          "r"(there)
          : "memory");
    }
#endif
  }
  /// A thread's row; its scale comes by a load.
  __device__ static void ask_scale(const MlaHeadsArgs& h, int head, int share, One& k_b) {
    const int64_t block = (h.k_b.row(head, 0) + thread()) * (h.nope / kShare) + share;
    k_b.raw.scale = load_weight(reinterpret_cast<const uint16_t*>(h.k_b.scale) + block);
  }
  __device__ static void take(One& k_b) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(shared_address(&shared().k_there), 0);
    const auto* const mine = reinterpret_cast<const uint4*>(shared().norm) + thread() * (kBytes / 16);
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = mine[i];
      k_b.raw.codes[4 * i] = v.x, k_b.raw.codes[4 * i + 1] = v.y;
      k_b.raw.codes[4 * i + 2] = v.z, k_b.raw.codes[4 * i + 3] = v.w;
    }
#endif
  }
};

/// A block's rows of q in shared memory: codes, then scales.
template <typename One>
struct CopiedQueries {
  static constexpr Type kType = type_of<One>();
  static constexpr bool kServes = kType == Type::Q4_0;
  static constexpr int kCodes = 16, kScale = 2;  ///< bytes of a block of 32 columns
  const int count, blocks, at;                   ///< rows, their blocks, where they lie

  __device__ CopiedQueries(const LongArgs& args, const Share& share)
      : count(share.count), blocks(args.heads.q.columns / 32), at(args.q_at) {}
  __device__ const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(&shared()) + at; }
  __device__ const uint8_t* scales() const { return codes() + count * blocks * kCodes; }
  /// One thread calls it.
  __device__ void ask(const MlaHeadsArgs& h, const Share& share, int head, int rank) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = shared_address(&shared().q_there);
    barrier_expect(there, static_cast<uint32_t>(count * blocks * (kCodes + kScale)));
#pragma unroll 1
    for (int i = 0; i < count; i += kShare) {
      const int rows = min(i < share.shares * kShare ? kShare : count - i, count - i);
      const int64_t from = (h.q.first_row + query_row(h, share, head, rank, i)) * blocks;
      copy_bulk(shared_address(codes() + i * blocks * kCodes), h.q.codes + from * kCodes,
                static_cast<uint32_t>(rows * blocks * kCodes), there);
      copy_bulk(shared_address(scales() + i * blocks * kScale), h.q.scale + from * kScale,
                static_cast<uint32_t>(rows * blocks * kScale), there);
    }
#endif
  }
  /// As LaneRows has it.
  template <typename Put>
  __device__ void multiply(const Activations& x, Put put) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kServes) {
      barrier_wait(shared_address(&shared().q_there), 0);
      const int lane = thread() % kRowLanes;
#pragma unroll 1
      for (int i = thread() / kRowLanes; i / (kThreads / kRowLanes) * (kThreads / kRowLanes) < count;
           i += kThreads / kRowLanes) {
        const CodePlanes planes{codes(), nullptr, scales(), nullptr};
        const int first = min(i, count - 1) * blocks;
        float sum = 0;
#pragma unroll 3
        for (int b = lane; b < blocks; b += kRowLanes)
          sum += cuda::multiply<kType>(load_block<kType>(planes, first + b, FromShared{}), x.block(0, b));
        sum = lane_sum(sum, kRowLanes);
        if (i < count && lane == 0) put(i, sum);
      }
    }
#endif
  }
};

/// n / by of small numbers (n below 2^20): a few instructions where a division takes dozens.
__device__ inline int quotient(int n, int by) {
  return __float2int_rd((static_cast<float>(n) + 0.5f) * __frcp_rn(static_cast<float>(by)));
}

/// A block's heads and its part of the context.
struct Work {
  int part, first_head, heads, begin, end;  ///< positions [begin, end); none: nothing to attend to
  int piece_rows, pieces;

  __device__ Work(const Args& args, int length) : piece_rows(args.piece) {
    const int block = static_cast<int>(blockIdx.x), all = args.heads.out.heads;
    const int sixteens = (length + 15) / 16, parts = parts_of(args, length);
    part = quotient(block, args.groups);
    const int group = block - part * args.groups;
    first_head = quotient(all * group, args.groups);
    heads = quotient(all * (group + 1), args.groups) - first_head;
    begin = part < parts ? quotient(sixteens * part, parts) * 16 : 0;
    end = part < parts ? min(quotient(sixteens * (part + 1), parts) * 16, length) : 0;
    pieces = quotient(end - begin + piece_rows - 1, piece_rows);
  }
  /// Parts of a context, none of them without positions.
  __device__ static int parts_of(const Args& args, int length) { return min(args.parts, (length + 15) / 16); }
  __device__ int first_of(int piece) const { return begin + piece * piece_rows; }
  __device__ int count_of(int piece) const { return min(piece_rows, end - first_of(piece)); }
};

/// A lane's eight rows of a piece: the blocks of a cluster share them, their warps those.
struct PieceRows {
  int first, row;  ///< of the piece, of the cache as TMA counts them

  __device__ PieceRows(const Args& args, const Work& work, int piece, int last, int sequence, int pages)
      : first((thread() / 32 + thread() % 32 * kWarps) * args.in_cluster + static_cast<int>(cluster_rank())) {
    const MlaHeadsArgs& h = args.heads;
    first *= kEight;
    const int position = min(work.first_of(piece) + first, last);
    const int page = __ldg(h.step.page_tables + int64_t{sequence} * pages + position / kPage);
    row = (page * h.cache.layers + h.layer) * kPage + position % kPage;
  }
};

/// Asks for a piece's rows of earlier steps, for the whole cluster; whole eights, whose last may hold what is
/// no row. The block calls it.
__device__ inline void ask_for_rows(const LongArgs& args, const Work& work, int piece, int position,
                                    const PieceRows& mine) {
#if __CUDA_ARCH__ >= 900
  Shared& s = shared();
  const int count = max(0, min(work.count_of(piece), position - work.first_of(piece)));
  const uint32_t there = shared_address(&s.rows_there);
  if (thread() == 0)
    barrier_expect(there, static_cast<uint32_t>((count + kEight - 1) / kEight * kEightBytes));
  if (mine.first >= count) return;
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(s.rows) + mine.first * HalfRow::kBytes),
      "l"(&args.rows), "r"(0), "r"(mine.row), "r"(0), "r"(there),
      "h"(static_cast<uint16_t>((1 << args.in_cluster) - 1))
      : "memory");
#endif
}

}  // namespace sluice::backend::cuda::first_half::ctx8k
