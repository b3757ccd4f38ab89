// norm_mla_heads of one row over a short context: a layer's first half, from the row to the values of its
// heads, in one launch of plain blocks of threads, some to a head. They hand each other numbers over the
// board (prim/board.cuh), three times:
//
//   the row normed, low-rank query and latent (a, b), by all blocks for all | queries of a head shared by its
//   blocks, their part of its latent queries (q, k_b) | attention over a block's chunks of the context | sums
//   put together, values (v_b)
//
// The blocks wait for each other, so there are no more of them than multiprocessors. Most begin when the
// kernel before ends, which fills the multiprocessors: between that and a product stands as little code as
// can be, for every warp runs all of it.
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>

#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/mla_heads.cuh"
#include "backend/cuda/prim/any_type.cuh"
#include "backend/cuda/prim/board.cuh"
#include "backend/cuda/prim/lane_rows.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mla_attend.cuh"
#include "backend/cuda/prim/mla_row.cuh"
#include "backend/cuda/prim/prefetch.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kRank = kMlaRank, kWidth = kMlaWidth, kTurned = kWidth - kRank;  // of a cache row
constexpr int kShare = 32;  // columns of k_b under one scale: what blocks share a head's queries by
constexpr int kPage = static_cast<int>(kPageRows);
constexpr int kChunk = 32;             // positions; a page is some of them
constexpr int kMostColumns = 4096;     // of the row
constexpr int kMostLow = 4096;         // numbers of the low-rank query, or of queries
constexpr int kMostLowColumns = 1024;  // of the low-rank query; for Youtu-LLM-2B's 1,536 it does not pay
constexpr int kMostShares = 6;         // of a head's queries that are not turned
constexpr int kMostValues = 256;       // of a head
constexpr int kMostBlocks = 8, kMostHeads = 32;  // kMostBlocks: of a head
static_assert(kRank == kThreads, "a thread has a column");

/// What a block makes of its head's queries: every blocks-th share of 32, and some of those to be turned.
struct Share {
  int shares, turned, count;  ///< turned: the first of those; count: of all
};

struct Args {
  MlaHeadsArgs heads;  ///< in.columns: of the low-rank query; cluster: blocks of a head
  Matrix a, b;
  const float *in, *norm;
  float epsilon;
  int columns, lanes, a_tasks, tasks;  ///< of a row of a and b; tasks: of a warp
  Board board;
  Share shares[kMostBlocks];  ///< by block of a head
  int parts;                  ///< blocks of a head that have a share
  int head_words;             ///< of a head on the board: parts, queries to be turned, sums
};

/// Where numbers lie on the board, in words: the cache's row before its norm, the low-rank query (or
/// queries), and what heads have.
constexpr int kLatentWords = kHeadsBoard, kQueryWords = kLatentWords + kWidth;
__device__ inline int head_words(const Args& args, int head) {
  return kQueryWords + args.a.rows + head * args.head_words;
}
__device__ inline int part_words(const Args& args, int head, int rank) {
  return head_words(args, head) + rank * kRank;
}
__device__ inline int turned_words(const Args& args, int head) { return part_words(args, head, args.parts); }
__device__ inline int sum_words(const Args& args, int head, int rank) {
  return turned_words(args, head) + kTurned + rank * (kRank + 2);
}
static_assert(kWidth + kMostLow + kMostHeads * (kMostShares * kRank + kTurned + kMostBlocks * (kRank + 2)) <=
              kSumsBoard - kHeadsBoard);

constexpr int activation_bytes(int columns) { return columns / 32 * 40; }

/// A block's shared memory.
struct alignas(16) Shared {
  char row[activation_bytes(kMostColumns)];
  char x[activation_bytes(kMostLowColumns)];     // the low-rank query
  char q_blocks[activation_bytes(32 * kWarps)];  // a share of queries, a copy a warp
  char context[activation_bytes(kRank)];
  float norm[kMostColumns], q_norm[kMostLowColumns];
  float q[kMostShares * kShare + kTurned];  // this block's queries: shares, then those to be turned
  alignas(16) float query[kWidth];
  alignas(16) char current[HalfRow::kBytes];  // the row that this step adds, as the cache holds it
  float weights[kChunk], values[kMostValues];
  Turn turns[kTurned / 2];
  alignas(16) float other_half[kRank];  // of sums of values
  alignas(16) float partial[3][kWarps];
  alignas(16) char chunk[kChunk * HalfRow::kBytes];  // rows of the cache as they are
};

__device__ inline Shared& shared() { return *reinterpret_cast<Shared*>(dynamic_shared(0)); }
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
  /// Leaves the products on the board.
  __device__ void run(const Activations& x, float factor, uint32_t tag) {
#pragma unroll 1
    while (!done()) {
      const float product = ahead.times(matrix(), first_block(), x, shape) * factor;
      const int at = (task < args.a_tasks ? kQueryWords : kLatentWords) + row;
      if (row < matrix().rows && shape.lane() == 0) put_word(args.board.words + at, product, tag);
      task += blocks() * kWarps;
      ask();
    }
  }
};

/// Query i of a block's among all heads' queries.
__device__ inline int query_row(const MlaHeadsArgs& args, const Share& share, int head, int rank, int i) {
  const int at = i - share.shares * kShare;
  return head * (args.nope + kTurned) +
         (at < 0 ? (rank + i / kShare * args.cluster) * kShare + i % kShare : args.nope + share.turned + at);
}

/// Numbers of the row that this step adds, on their way: a column of the latent, a pair to be turned.
struct NewRow {
  static constexpr int kWords = 3;
  int first, second;
  bool turns;
  const uint64_t* at[kWords];

  /// wanted: whether this block reads it.
  __device__ NewRow(const Args& args, bool wanted)
      : first(args.heads.rope.first(thread())),
        second(args.heads.rope.second(thread(), kTurned / 2)),
        turns(wanted && thread() < kTurned / 2) {
    const uint64_t* const words = args.board.words + kLatentWords;
    at[0] = wanted ? words + thread() : nullptr;
    at[1] = turns ? words + kRank + first : nullptr;
    at[2] = turns ? words + kRank + second : nullptr;
  }
  /// The row as the cache holds it, to shared memory, and from the first block to the cache. The block meets,
  /// and meets again before the row is read.
  template <typename Row>
  __device__ void put(const Args& args, const float* value) const {
    Shared& s = shared();
    const MlaHeadsArgs& h = args.heads;
    const float norm = __ldg(h.kv_norm + thread());
    const float squares = lane_sum(value[0] * value[0]);
    if (thread() % 32 == 0) s.partial[2][thread() / 32] = squares;
    __syncthreads();
    Row::put_latent(s.current, thread(), value[0] * factor_of(s.partial[2], kRank, h.epsilon) * norm);
    if (turns) {
      const Turn turn = s.turns[thread()];
      put_exact<Row>(s.current, first, value[1] * turn.cosine - value[2] * turn.sine);
      put_exact<Row>(s.current, second, value[1] * turn.sine + value[2] * turn.cosine);
    }
    if (blockIdx.x + blockIdx.y != 0) return;
    __syncthreads();
    const int slot = __ldg(h.step.slots);
    if (slot >= 0) copy_row<Row>(h.cache.row(h.layer, slot), s.current);
  }
};

/// Words of the board that a thread takes together: its numbers of the low-rank query, or one of this block's
/// queries, and what it takes of the new row.
constexpr int kMostLowWords = kMostLowColumns / kThreads;
constexpr int kTaken = kMostLowWords + NewRow::kWords;

/// The low-rank query, quantised; returns the factor of its norm. The block meets.
__device__ inline float quantize_query(const Args& args, const Activations& x, const float* value) {
  Shared& s = shared();
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMostLowWords; ++i) {
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

/// A thread's row of k_b, of one share.
template <typename One>
__device__ inline void load_latent_row(const MlaHeadsArgs& args, int head, int share, One& k_b) {
  const int row = static_cast<int>(args.k_b.row(head, 0)) + thread();
  k_b.load(args.k_b.type, planes_from(args.k_b), row * (args.nope / kShare) + share);
}

/// What this block's queries give of latent queries, and those of them to be turned, to the board. The block
/// has met since they were made. k_b: of the first share.
template <typename One>
__device__ inline void put_queries(const Args& args, int head, int rank, const Share& share, One& k_b,
                                   uint32_t tag) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int lane = thread() % 32, warp = thread() / 32;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < share.shares; ++i) {
    const Activations x{offsetof(Shared, q_blocks), 32 * kWarps, true, false};
    if (i > 0) {
      load_latent_row(h, head, rank + i * h.cluster, k_b);
      __syncwarp();
    }
    quantize_lanes(x, warp, s.q[i * kShare + lane]);
    __syncwarp();
    sum += k_b.times(h.k_b.type, x.block(0, warp));
  }
  uint64_t* const words = args.board.words;
  if (share.shares > 0) put_word(words + part_words(args, head, rank) + thread(), sum, tag);
  const int at = share.shares * kShare + thread();
  if (at < share.count) put_word(words + turned_words(args, head) + share.turned + thread(), s.q[at], tag);
}

/// The head's queries as the cache's rows meet them. The block meets.
__device__ inline void take_queries(const Args& args, int head, uint32_t tag) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const uint64_t* at[kMostShares + 2];
  float value[kMostShares + 2];
#pragma unroll
  for (int i = 0; i < kMostShares; ++i)
    at[i] = i < args.parts ? args.board.words + part_words(args, head, i) + thread() : nullptr;
  const bool turns = thread() < kTurned / 2;
  const int first = h.rope.first(thread()), second = h.rope.second(thread(), kTurned / 2);
  const uint64_t* const turned = args.board.words + turned_words(args, head);
  at[kMostShares] = turns ? turned + first : nullptr;
  at[kMostShares + 1] = turns ? turned + second : nullptr;
  take_each(at, tag, value);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMostShares; ++i) sum += value[i];  // of those that are not there, zero
  s.query[thread()] = sum;
  if (turns) {
    const Turn turn = s.turns[thread()];
    const float a = value[kMostShares], b = value[kMostShares + 1];
    s.query[kRank + first] = a * turn.cosine - b * turn.sine;
    s.query[kRank + second] = a * turn.sine + b * turn.cosine;
  }
  __syncthreads();
}

/// Blocks of a head that have a chunk of the context.
__device__ inline int attending(const MlaHeadsArgs& args, int position) {
  return min(args.cluster, position / kChunk + 1);
}

/// Attention over this block's chunks, to the board. Either half of the
/// threads has every other position, a thread of it two columns of the latent.
template <typename Row>
__device__ inline void attend_share(const Args& args, int head, int rank, int position, uint32_t tag) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  constexpr float kNone = -INFINITY;
  const int lane = thread() % 32, half = thread() / (kThreads / 2), pair = thread() % (kThreads / 2);
  static_assert(kChunk == 32 && kTurned / 2 == 32);
  float largest = kNone, total = 0, x = 0, y = 0;
#pragma unroll 1
  for (int begin = rank * kChunk; begin <= position; begin += h.cluster * kChunk) {
    const int end = min(begin + kChunk, position + 1);
    if (begin != rank * kChunk) {  // the first chunk was fetched before
      __syncthreads();
      fetch_rows<Row, kThreads>(s.chunk, h.cache.row(h.layer, h.step.slot_of(0, begin)),
                                min(end, position) - begin);
    }
    wait_for_copies();
    // This step's row is not in the cache yet.
    if (position < end) copy_row<Row>(s.chunk + (position - begin) * Row::kBytes, s.current);
    __syncthreads();
    const int count = end - begin;
    score_rows<Row, kChunk, kWarps>(s.chunk, s.query, count, h.scale, s.weights);
    __syncthreads();
    // Every warp turns all scores into weights for itself.
    const float score = s.weights[lane];
    const float next = fmaxf(largest, lane_max(score)), shrink = expf(largest - next);
    const float weight = expf(score - next);  // 0 behind the last position
    largest = next;
    total = total * shrink + lane_sum(weight);
    x *= shrink, y *= shrink;
#pragma unroll 8
    for (int t = half; t < count; t += 2) {
      const float w = __shfl_sync(kWholeWarp, weight, t);
      const float2 value = Row::latent(s.chunk + t * Row::kBytes, pair);
      x += w * value.x, y += w * value.y;
    }
  }
  if (half == 1) reinterpret_cast<float2*>(s.other_half)[pair] = make_float2(x, y);
  __syncthreads();
  if (half == 1) return;
  const float2 other = reinterpret_cast<const float2*>(s.other_half)[pair];
  uint64_t* const words = args.board.words + sum_words(args, head, rank);
  put_word(words + 2 * pair, x + other.x, tag), put_word(words + 2 * pair + 1, y + other.y, tag);
  if (thread() == 0) put_word(words + kRank, largest, tag), put_word(words + kRank + 1, total, tag);
}

/// The head's context from all blocks' sums, quantised. The block meets.
__device__ inline void take_context(const Args& args, const Activations& x, int head, int blocks,
                                    uint32_t tag) {
  const int lane = thread() % 32;
  const uint64_t* at[kMostBlocks + 2];
  float value[kMostBlocks + 2];
#pragma unroll
  for (int i = 0; i < kMostBlocks; ++i)
    at[i] = i < blocks ? args.board.words + sum_words(args, head, i) + thread() : nullptr;
  // A lane finds the factor of a block.
  const uint64_t* const mine = args.board.words + sum_words(args, head, min(lane, blocks - 1)) + kRank;
  at[kMostBlocks] = mine, at[kMostBlocks + 1] = mine + 1;
  take_each(at, tag, value);
  const float best = lane < blocks ? value[kMostBlocks] : -INFINITY;
  const float total = lane < blocks ? value[kMostBlocks + 1] : 0.0f;
  const float part = expf(best - lane_max(best));
  const float factor = __fdividef(part, lane_sum(part * total));
  float context = 0;
#pragma unroll
  for (int i = 0; i < kMostBlocks; ++i) context += __shfl_sync(kWholeWarp, factor, i) * value[i];
  quantize_lanes(x, thread() / 32, context);
  __syncthreads();
}

template <typename Low, typename Q, typename B, typename Row>
__global__ void __launch_bounds__(kThreads, 1)
    norm_mla_heads(const Stamps stamps, const __grid_constant__ Args args) {
  const Link link(stamps);
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int rank = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  LowRows<Low> low(args);
  low.ask();
  fetch_norm(s.norm, args.norm, args.columns);
  if (h.q_norm != nullptr) fetch_norm(s.q_norm, h.q_norm, h.in.columns);
  // The step's data was there before the first kernel began.
  const uint32_t tag = args.board.tag();
  const int position = __ldg(h.step.positions), sequence = __ldg(h.step.sequences),
            pages = __ldg(&h.step.header->pages_per_sequence);
  link.wait();

  wait_for_copies();
  const Activations row{offsetof(Shared, row), args.columns, true, false};
  int page = 0;  // of this block's first chunk; if the context is shorter, any page
  float squares = quantize_row(row, args.in, s.norm, [&] {
    page = __ldg(h.step.page_tables + int64_t{sequence} * pages + min(rank * kChunk / kPage, pages - 1));
  });
  squares = lane_sum(squares);
  if (thread() % 32 == 0) s.partial[0][thread() / 32] = squares;
  __syncthreads();
  low.run(row, factor_of(s.partial[0], args.columns, args.epsilon), tag);

  const Share share = args.shares[rank];
  auto q = lane_rows<Q, kThreads>(h.q, share.count, [&](int i) {
    return static_cast<int>(h.q.first_row) + query_row(h, share, head, rank, i);
  });
  const bool multiplies = h.q.codes != nullptr;
  if (multiplies) q.ask();
  B k_b;
  if (share.shares > 0) load_latent_row(h, head, rank, k_b);
  const bool adds = position / kChunk % h.cluster == rank || (rank == 0 && head == 0);
  const NewRow added(args, adds);
  const uint64_t* at[kTaken];
#pragma unroll
  for (int i = 0; i < kMostLowWords; ++i) {
    const int n = i * kThreads + thread();
    const bool wanted = multiplies ? n < h.in.columns : n < share.count;
    const int word = multiplies ? n : query_row(h, share, head, rank, n);
    at[i] = wanted ? args.board.words + kQueryWords + word : nullptr;
  }
#pragma unroll
  for (int i = 0; i < NewRow::kWords; ++i) at[kMostLowWords + i] = added.at[i];
  float taken[kTaken];
  if (thread() % kWarps == 0)  // some threads of each warp
    s.turns[thread() / kWarps] = h.rope.turn(position, thread() / kWarps, h.factors);
  // Rows of earlier positions were there before this step.
  fetch_rows<Row, kThreads>(s.chunk, h.cache.row(h.layer, int64_t{page} * kPage + rank * kChunk % kPage),
                            min(kChunk, position - rank * kChunk));
  take_each(at, tag, taken);
  if (multiplies) {
    const Activations x{offsetof(Shared, x), h.in.columns, true, false};
    const float factor = quantize_query(args, x, taken);
    q.multiply(x, [&](int i, float value) { s.q[i] = value * factor; });
  } else {
#pragma unroll
    for (int i = 0; i < kMostLowWords; ++i) {
      const int n = i * kThreads + thread();
      if (n < share.count) s.q[n] = taken[i];
    }
  }
  __syncthreads();
  put_queries(args, head, rank, share, k_b, tag);
  if (adds) added.put<Row>(args, taken + kMostLowWords);

  const int values = h.out.columns, v_first = min(rank * h.each, values);
  const int v_row = static_cast<int>(h.v_b.row(head, v_first));
  auto v = lane_rows<B, kThreads>(h.v_b, min(h.each, values - v_first), [v_row](int i) { return v_row + i; });
  const int64_t v_bytes = code_bytes(h.v_b.type, kRank);
  prefetch_range(h.v_b.codes + v_row * v_bytes, v.count * v_bytes);
  const int blocks = attending(h, position);
  if (rank < blocks) {
    take_queries(args, head, tag);
    attend_share<Row>(args, head, rank, position, tag);
  }
  if (v.count <= 0) return;
  v.ask();
  const Activations context{offsetof(Shared, context), kRank, true, false};
  take_context(args, context, head, blocks, tag);
  v.multiply(context, [&](int i, float value) { h.out(0, head)[v_first + i] = s.values[i] = value; });
  if (h.handed == nullptr) return;
  __syncthreads();
  const int block = thread() / 32;
  if (block * 32 < v.count)
    quantize_lanes(h.handed, h.out.heads * values / 32, (head * values + v_first) / 32 + block,
                   s.values[thread()]);
}

/// The kernel for the types of a, b and q, and of k_b and v_b: of its own where files have them often.
template <typename Row>
auto kernel_for(const Args& args) {
  using quant::Type;
  const MlaHeadsArgs& h = args.heads;
  const Type low = args.a.type, b = h.k_b.type;
  const bool same = args.b.type == low && (h.q.codes == nullptr || h.q.type == low) && h.v_b.type == b;
  if (same && b == Type::Q8_0) {
    if (low == Type::Q4_0)
      return norm_mla_heads<TypedRaw<Type::Q4_0>, TypedRaw<Type::Q4_0>, TypedRaw<Type::Q8_0>, Row>;
    if (low == Type::Q4_K)
      return norm_mla_heads<TypedRaw<Type::Q4_K>, TypedRaw<Type::Q4_K>, TypedRaw<Type::Q8_0>, Row>;
    if (low == Type::Q8_0)
      return norm_mla_heads<TypedRaw<Type::Q8_0>, TypedRaw<Type::Q8_0>, TypedRaw<Type::Q8_0>, Row>;
  }
  if (same && b == Type::Q4_0 && low == Type::Q4_0)
    return norm_mla_heads<TypedRaw<Type::Q4_0>, TypedRaw<Type::Q4_0>, TypedRaw<Type::Q4_0>, Row>;
  return norm_mla_heads<AnyRaw, AnyRaw, AnyRaw, Row>;
}
auto kernel_of(const Args& args) {
  return args.heads.cache.coded > 0 ? kernel_for<CodedRow>(args) : kernel_for<HalfRow>(args);
}

/// How `blocks` blocks a head share the work.
void share_out(Args& args, int blocks) {
  MlaHeadsArgs& h = args.heads;
  const int shares = h.nope / kShare;
  h.cluster = blocks;
  h.each = ((h.out.columns + blocks - 1) / blocks + 31) / 32 * 32;
  args.parts = std::min(shares, blocks);
  args.head_words = args.parts * kRank + kTurned + blocks * (kRank + 2);
  for (int rank = 0; rank < blocks; ++rank) {
    Share& share = args.shares[rank];
    share.shares = (shares - rank + blocks - 1) / blocks;
    share.turned = kTurned * rank / blocks;
    share.count = share.shares * kShare + kTurned * (rank + 1) / blocks - share.turned;
  }
  // As many lanes a row as leave every warp no more than a task.
  const auto tasks = [&](const Matrix& m) { return RowShape{args.columns / 32, args.lanes, m.rows}.tasks(); };
  for (args.lanes = lanes_for(args.columns); args.lanes > 8; args.lanes /= 2) {
    if (tasks(args.a) + tasks(args.b) <= h.out.heads * blocks * kWarps) break;
  }
  args.a_tasks = tasks(args.a), args.tasks = args.a_tasks + tasks(args.b);
}

void launch_norm_mla_heads(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMlaHeads>(record.args);
  const Memory& memory = context.memory;
  const MlaQuery& query = op.heads.query;
  Args args{};
  args.a = memory.matrix(op.products.a.id), args.b = memory.matrix(op.products.b.id);
  args.in = memory.rows(op.products.in.id).data, args.norm = memory.vector(op.products.norm.id);
  args.epsilon = op.products.epsilon, args.columns = args.a.columns;
  args.board = context.board();
  MlaHeadsArgs& h = args.heads;
  h.nope = static_cast<int>(query.nope(program));
  h.step = context.step;
  h.out = memory.rows(op.heads.out.id);
  h.q_norm = memory.vector(query.q_norm.id), h.kv_norm = memory.vector(query.kv_norm.id);
  h.factors = memory.vector(query.factors.id);
  if (query.q) h.q = memory.matrix(query.q.id), h.in.columns = h.q.columns;
  h.k_b = memory.matrix(query.k_b.id), h.v_b = memory.matrix(op.heads.v_b.id);
  h.cache = memory.cache();
  h.layer = query.cache_layer, h.epsilon = query.epsilon, h.scale = op.heads.scale;
  h.rope = rope_table(query.rope, kTurned);
  if (h.out.columns % 32 == 0) h.handed = context.scratch;
  share_out(args, std::clamp(context.processors / h.out.heads, 1, kMostBlocks));
  launch(context, kernel_of(args),
         {dim3(static_cast<unsigned>(h.cluster), static_cast<unsigned>(h.out.heads)), dim3(kThreads),
          static_cast<int64_t>(sizeof(Shared))},
         args);
}

bool serves_norm_mla_heads(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMlaHeads>(record.args);
  const MlaQuery& query = op.heads.query;
  const quant::CacheRow row = program[query.cache.id].cache_row();
  if (row.type == quant::Type::Q8_0 && row.coded() != kRank) return false;
  if (sizes.rows > 1 || sizes.longest > kShortContext) return false;
  if (query.k_b_reduce != Reduce::Columns) return false;
  for (const TensorId id : {op.products.a.id, op.products.b.id, query.q ? query.q.id : query.k_b.id,
                            query.k_b.id, op.heads.v_b.id}) {
    const double blocks = program.elements(program.storage(id), {}) / 32;
    if (find_format(program[id].type) == nullptr || blocks >= double{1u << 31}) return false;
  }
  const Tensor &a = program[op.products.a.id], &out = program[op.heads.out.id];
  const int64_t nope = query.nope(program), low = query.q ? program[query.q.id].columns() : 0;
  return query.rank(program) == kRank && query.rope_columns(program) == kTurned && nope > 0 &&
         nope % kShare == 0 && nope <= kMostShares * kShare && low <= kMostLowColumns && low % 32 == 0 &&
         a.columns() <= kMostColumns && a.columns() % 32 == 0 && a.shape[1] <= kMostLow &&
         program[op.products.in.id].offset % 4 == 0 && out.heads() <= kMostHeads &&
         out.heads() <= sizes.processors && out.columns() <= kMostValues;
}

int64_t scratch_bytes(const Program& program, const Op& record, const Sizes&) {
  const Tensor& out = program[std::get<NormMlaHeads>(record.args).heads.out.id];
  return Activations::bytes_size(static_cast<int>(out.heads() * out.columns()));
}

static_assert(sizeof(Shared) <= kMostShared);

}  // namespace

const Kernel kNormMlaHeads{"from the row to its heads' values, blocks a head", serves_norm_mla_heads,
                           launch_norm_mla_heads, scratch_bytes};

}  // namespace sluice::backend::cuda
