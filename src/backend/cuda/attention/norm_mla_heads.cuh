// norm_mla_heads of one or two rows, as far as its kernels over a short context (norm_mla_heads_ctx512.cuh)
// and over a long one (norm_mla_heads_ctx8k.cu) are the same: the row normed, its products with a
// (low-rank query, or queries) and b (latent), by all blocks for all of them over the mailbox; the queries of
// a head shared by its blocks, and what each of them gives of the head's latent queries, in sums of all
// (prim/mailbox.cuh: add_part); the row that enters the cache.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads.cuh"
#include "backend/cuda/attention/mla_row.cuh"
#include "backend/cuda/gemv/lane_rows.cuh"
#include "backend/cuda/prim/any_type.cuh"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/prim/prefetch.cuh"

namespace sluice::backend::cuda::first_half {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
inline constexpr int kRank = kMlaRank, kWidth = kMlaWidth, kRotated = kWidth - kRank;  // of a cache row
inline constexpr int kShare = 32;  // columns of k_b under one scale: what blocks share a head's queries by
inline constexpr int kMostColumns = 4096;               // of the row
inline constexpr int kMostLow = 4096;                   // numbers of the low-rank query, or of queries
inline constexpr int kMostShares = 6;                   // of a head's queries that are not rotated
inline constexpr int kMostValues = 256;                 // of a head
inline constexpr int kMostBlocks = 8, kMostHeads = 32;  // kMostBlocks: of a head
inline constexpr int kMostRows = 2;                     // of a step
static_assert(kRank == kThreads, "a thread has a column");

/// What a block makes of its head's queries: every blocks-th share of 32, and some of those to be rotated.
struct Share {
  int shares, rotated, count;  ///< rotated: the first of those; count: of all
};

struct Args {
  MlaHeadsArgs heads;  ///< in.columns: of the low-rank query; cluster: blocks of a head
  Matrix a, b;
  const float *in, *norm;
  float epsilon;
  int columns, lanes, a_tasks, tasks;  ///< of a row of a and b; tasks: of a warp
  Mailbox mailbox;
  Share shares[kMostBlocks];  ///< by block of a head
  int head_slots;             ///< of a head on the mailbox
  int shared;                 ///< blocks of a head that have a share of its queries
  int parts;                  ///< ctx8k: of a head's context
  int groups;                 ///< ctx8k: of heads that a block attends for
  int in_cluster;             ///< ctx8k: blocks of a part that have its rows brought together
  int piece;                  ///< ctx8k: positions of a block at a time, whole sixteens
  int64_t in_stride;          ///< two rows: from a row of the step to the next
  int row_slots;              ///< two rows: flagged ones of the mailbox, of a row
  int zeroed_row_slots;       ///< two rows: zeroed ones
  int8_mma::TokenRows coded;  ///< two rows: how values lie in codes
};

/// The row of the step that a block works for: two rows have blocks of their own.
__device__ inline int own_row() { return static_cast<int>(blockIdx.z); }
/// Of one row there is nothing to be computed of it, which took 1% of a token.
template <int kRows>
__device__ inline void assume_rows() {
  if constexpr (kRows == 1) __builtin_assume(blockIdx.z == 0);
}

/// Where a row's numbers lie on the mailbox, in words: the cache's row before its norm, the low-rank query
/// (or queries), and what heads have.
inline constexpr int kLatentSlots = 0, kQuerySlots = kLatentSlots + kWidth;
/// Among its zeroed slots: sums with counts (add_part), then what the kernel for a long context has.
inline constexpr int kCountedSlots = kMostHeads * kWidth;
__device__ inline int head_slots(const Args& args, int head) {
  return kQuerySlots + args.a.rows + head * args.head_slots;
}
__device__ inline uint64_t* flagged_slots(const Args& args, int row) {
  return args.mailbox.slots + row * args.row_slots;
}

__device__ inline uint64_t* zeroed_slots(const Args& args) {
  return args.mailbox.zeroed + own_row() * args.zeroed_row_slots;
}

constexpr int activation_bytes(int columns) { return columns / 32 * 40; }

__device__ inline int thread() { return static_cast<int>(threadIdx.x); }

__device__ inline float factor_of(const float* partial, int columns, float epsilon) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(partial + w);
    sum += (four.x + four.y) + (four.z + four.w);
  }
  return rsqrtf(sum / static_cast<float>(columns) + epsilon);
}

/// Rows of a and b that warps of the launch share.
template <typename One>
struct LowRows {
  const Args& args;
  const RowShape shape;
  int task, row;  // row: this lane's
  RowAhead<One, 4> ahead;

  __device__ explicit LowRows(const Args& all)
      : args(all),
        shape{all.columns / 32, all.lanes, 0},
        task(thread() / 32 * blocks() + static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)) {}
  __device__ static int blocks() { return static_cast<int>(gridDim.x * gridDim.y); }
  __device__ bool done() const { return task >= args.tasks; }
  __device__ const Matrix& matrix() const { return task < args.a_tasks ? args.a : args.b; }
  __device__ int first_block() const {
    const Matrix& m = matrix();
    return (static_cast<int>(m.first_row) + min(row, m.rows - 1)) * shape.blocks;
  }
  __device__ void ask() {
    if (done()) return;
    row = shape.row_of(task < args.a_tasks ? task : task - args.a_tasks);
    ahead.ask(matrix(), first_block(), shape);
  }
  /// Leaves the products on the mailbox.
  __device__ void run(const Activations& x, float factor, uint32_t flag) {
#pragma unroll 1
    while (!done()) {
      const float product = ahead.times(matrix(), first_block(), x, shape) * factor;
      const int at = (task < args.a_tasks ? kQuerySlots : kLatentSlots) + row;
      if (row < matrix().rows && shape.lane() == 0)
        put_slot(flagged_slots(args, own_row()) + at, product, flag);
      task += blocks() * kWarps;
      ask();
    }
  }
};

/// Sums of a head's latent queries, and behind them its queries to be rotated: kWidth words.
__device__ inline uint64_t* query_sums(const Args& args, int head) {
  return zeroed_slots(args) + head * kWidth;
}

/// Query i of a block's among all heads' queries.
__device__ inline int query_row(const MlaHeadsArgs& args, const Share& share, int head, int rank, int i) {
  const int at = i - share.shares * kShare;
  return head * (args.nope + kRotated) +
         (at < 0 ? (rank + i / kShare * args.cluster) * kShare + i % kShare : args.nope + share.rotated + at);
}

/// Numbers of a row that this step adds to the cache, on their way: a column of the latent, a pair to be
/// rotated.
struct NewRow {
  static constexpr int kSlots = 3;
  int first, second;
  bool rotates;
  const uint64_t* at[kSlots];

  /// wanted: whether this block reads it.
  __device__ NewRow(const Args& args, int row, bool wanted)
      : first(args.heads.rope.first(thread())),
        second(args.heads.rope.second(thread(), kRotated / 2)),
        rotates(wanted && thread() < kRotated / 2) {
    const uint64_t* const slots = flagged_slots(args, row) + kLatentSlots;
    at[0] = wanted ? slots + thread() : nullptr;
    at[1] = rotates ? slots + kRank + first : nullptr;
    at[2] = rotates ? slots + kRank + second : nullptr;
  }
  /// The row as the cache holds it, to shared memory. partial: there, too, a float a warp. The block meets,
  /// and meets again before the row is read.
  template <typename Row>
  __device__ void put(const Args& args, const float* value, const SinCos* angles, float* partial,
                      char* to) const {
    const MlaHeadsArgs& h = args.heads;
    const float norm = __ldg(h.kv_norm + thread());
    const float squares = lane_sum(value[0] * value[0]);
    if (thread() % 32 == 0) partial[thread() / 32] = squares;
    __syncthreads();
    Row::put_latent(to, thread(), value[0] * factor_of(partial, kRank, h.epsilon) * norm);
    if (rotates) {
      const SinCos sin_cos = angles[thread()];
      put_exact<Row>(to, first, value[1] * sin_cos.cosine - value[2] * sin_cos.sine);
      put_exact<Row>(to, second, value[1] * sin_cos.sine + value[2] * sin_cos.cosine);
    }
  }
};

/// From a row's first block to the cache, the row that NewRow has put. The block meets.
template <typename Row>
__device__ inline void append(const MlaHeadsArgs& h, const char* current) {
  if (blockIdx.x + blockIdx.y != 0) return;
  __syncthreads();
  const int slot = __ldg(h.step.slots + own_row());
  if (slot >= 0) copy_row<Row>(h.cache.row(h.layer, slot), current);
}

/// The low-rank query, quantised; returns the factor of its norm. The block meets.
template <int kLowSlots, typename Shared>
__device__ inline float quantize_query(const Args& args, Shared& s, const Activations& x,
                                       const float* value) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kLowSlots; ++i) {
    const int c = i * kThreads + thread();
    if (c / 32 * 32 >= x.columns) break;
    squares += value[i] * value[i];
    quantize_lanes(x, c / 32, args.heads.q_norm != nullptr ? value[i] * s.q_norm[c] : value[i]);
  }
  squares = lane_sum(squares);
  if (thread() % 32 == 0) s.partial[1][thread() / 32] = squares;
  __syncthreads();
  return args.heads.q_norm != nullptr ? factor_of(s.partial[1], x.columns, args.heads.epsilon) : 1.0f;
}

/// A block's queries: of the low-rank query, or the numbers that the mailbox has had. The block meets.
template <int kLowSlots, typename Shared, typename Queries>
__device__ inline void make_queries(const Args& args, Shared& s, const Activations& x, Queries& q,
                                    const float* taken) {
  if (args.heads.q.codes != nullptr) {
    const float factor = quantize_query<kLowSlots>(args, s, x, taken);
    q.multiply(x, [&](int i, float value) { s.q[i] = value * factor; });
  } else {
#pragma unroll
    for (int i = 0; i < kLowSlots; ++i) {
      const int n = i * kThreads + thread();
      if (n < q.count) s.q[n] = taken[i];
    }
  }
  __syncthreads();
}

/// A thread's row of k_b, of one share.
template <typename One>
__device__ inline void load_latent_row(const MlaHeadsArgs& args, int head, int share, One& k_b) {
  const int row = static_cast<int>(args.k_b.row(head, 0)) + thread();
  k_b.load(args.k_b.type, planes_from(args.k_b), row * (args.nope / kShare) + share);
}

/// What this block's queries give of latent queries, and those of them to be rotated, to the head's sums.
/// k_b: of the first share. blocks: a share of queries, a copy a warp.
template <typename One, typename Shared>
__device__ inline void add_queries(const Args& args, Shared& s, const Activations& blocks, int head, int rank,
                                   const Share& share, One& k_b) {
  const MlaHeadsArgs& h = args.heads;
  const int lane = thread() % 32, warp = thread() / 32;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < share.shares; ++i) {
    if (i > 0) {
      load_latent_row(h, head, rank + i * h.cluster, k_b);
      __syncwarp();
    }
    quantize_lanes(blocks, warp, s.q[i * kShare + lane]);
    __syncwarp();
    sum += k_b.times(h.k_b.type, blocks.block(0, warp));
  }
  uint64_t* const sums = query_sums(args, head);
  if (share.shares > 0) add_part(sums + thread(), sum, 1);
  const int at = share.shares * kShare + thread();
  if (at < share.count) add_part(sums + kRank + share.rotated + thread(), s.q[at], args.shared);
}

/// Once all who wait for them have taken a head's sums.
__device__ inline void clear_queries(const Args& args, int head) {
  uint64_t* const sums = query_sums(args, head);
  for (int i = thread(); i < kWidth; i += kThreads) sums[i] = 0;
}

/// Leaves the block's values of a head, from column `first` of all heads' on, in codes for the launch behind.
template <int kRows>
__device__ inline void put_codes(const Args& args, const float* values, int count, int first) {
  const MlaHeadsArgs& h = args.heads;
  const int warp = thread() / 32, all = h.out.heads * h.out.columns;
  if constexpr (kRows == 1) {
    if (warp * 32 < count) quantize_lanes(h.form_at, all / 32, first / 32 + warp, values[thread()]);
  } else {
    if (warp * 128 >= count) return;
    const int four = thread() % (count / 4);  // so lanes beyond the last do what others do
    const int column = first + 4 * four, quad = column / int8_mma::kQuad;
    int8_mma::store_codes(reinterpret_cast<const float4*>(values)[four],
                          h.form_at + own_row() * args.coded.pitch, args.coded, quad,
                          column % int8_mma::kQuad / 32, column % 32 / 4);
  }
}

/// Position of the step's other row, if this one sees it: an earlier one of the same sequence; or -1.
__device__ inline int earlier_position(const StepView& step, int position, int sequence) {
  const int other = 1 - own_row();
  if (step.header->rows <= other || __ldg(step.sequences + other) != sequence) return -1;
  const int at = __ldg(step.positions + other);
  return at < position ? at : -1;
}

/// Types of a and b, of q, of k_b and of v_b, as values.
template <typename Low, typename Q, typename K, typename V>
struct Types {};
/// make's kernel for the types of a, b and q, of k_b and of v_b: of its own where files have them often.
template <typename Make>
auto with_types(const Args& args, Make make) {
  using quant::Type;
  const MlaHeadsArgs& h = args.heads;
  const Type low = args.a.type, k = h.k_b.type, v = h.v_b.type;
  const bool same = args.b.type == low && (h.q.codes == nullptr || h.q.type == low);
  using Four = TypedRaw<Type::Q4_0>;
  using FourK = TypedRaw<Type::Q4_K>;
  using Five = TypedRaw<Type::Q5_0>;  // in place of Q4_K where rows are no whole 256 columns
  using Eight = TypedRaw<Type::Q8_0>;
  if (same && k == Type::Q8_0 && v == k) {
    if (low == Type::Q4_0) return make(Types<Four, Four, Eight, Eight>{});
    if (low == Type::Q4_K) return make(Types<FourK, FourK, Eight, Eight>{});
    if (low == Type::Q8_0) return make(Types<Eight, Eight, Eight, Eight>{});
  }
  if (same && k == Type::Q4_0 && v == k && low == k) return make(Types<Four, Four, Four, Four>{});
  if (same && k == Type::Q5_0 && v == Type::Q4_K && low == v) return make(Types<FourK, FourK, Five, FourK>{});
  return make(Types<AnyRaw, AnyRaw, AnyRaw, AnyRaw>{});
}

/// Whether there is a kernel of two rows: of the types that it was measured with (serves_two_rows).
template <typename Low, typename Q, typename K, typename V>
constexpr bool takes_two_rows() {
  using Four = TypedRaw<quant::Type::Q4_0>;
  using FourK = TypedRaw<quant::Type::Q4_K>;
  using Five = TypedRaw<quant::Type::Q5_0>;
  using Eight = TypedRaw<quant::Type::Q8_0>;
  using Types = std::tuple<Low, Q, K, V>;
  return std::is_same_v<Types, std::tuple<Four, Four, Eight, Eight>> ||
         std::is_same_v<Types, std::tuple<FourK, FourK, Five, FourK>>;
}

/// Blocks of a head: all of them are on the device at a time.
inline int blocks_of_head(int64_t heads, int sm_count) {
  return static_cast<int>(std::clamp<int64_t>(sm_count / heads, 1, kMostBlocks));
}

/// The same over a long context, where a block takes an SM.
inline int ctx8k_blocks_of_head(int64_t heads, int64_t rows, int sm_count) {
  return blocks_of_head(heads, sm_count / static_cast<int>(rows));
}

/// Of the low-rank query over a short context. Where there are clusters, mla_heads takes longer ones
/// (Youtu-LLM-2B's 1,536) in less time.
constexpr int ctx512_low_columns(int architecture) { return architecture >= 90 ? 1024 : 1536; }
inline constexpr int kCtx512LowColumns = ctx512_low_columns(0);
/// norm_mla_heads of one row or two over a short context (norm_mla_heads_ctx512.cuh): the launch, for types
/// of a and b, of q, of k_b and of v_b.
template <typename Low, typename Q, typename K, typename V>
void start_ctx512(const Args& args, const Context& context);

/// norm_mla_heads over a long context in one launch (norm_mla_heads_ctx8k.cu): whether it serves, what it
/// adds to the arguments, and the launch.
bool long_context_serves(const program::Program& program, const program::NormMlaHeads& op,
                         const Sizes& sizes);
void start_long_context(Args args, const Context& context);
/// Zeroed slots of the mailbox that a row takes behind the counted ones, by how heads share them.
struct Ctx8kSlots {
  int64_t slots = 0, layout = 0;
};
Ctx8kSlots ctx8k_slots(int64_t heads, int64_t rows, int sm_count);

}  // namespace sluice::backend::cuda::first_half
