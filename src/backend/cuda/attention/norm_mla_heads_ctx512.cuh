// norm_mla_heads of one or two rows over a short context: a layer's first half, from the row to the values of
// its heads, in one launch of plain thread blocks, some to a head. They hand each other numbers over the
// mailbox (prim/mailbox.cuh), three times:
//
//   the row normed, low-rank query and latent (a, b), by all blocks for all | queries of a head shared by its
//   blocks, their part of its latent queries (q, k_b) | attention over a block's chunks of the context | sums
//   put together, values (v_b)
//
// Of two rows each has blocks of its own, which read the same weights at about the same time and share the
// SMs: one computes while the other waits. Where both are of one sequence, the second row's blocks make the
// first one's row of the cache for themselves.
//
// The blocks wait for each other, so there are no more of them (of a row) than SMs. Most begin when the
// kernel before ends, which fills the SMs: between that and a product stands as little code as can be, for
// every warp runs all of it.
//
// Compiled for some types each by several files (norm_mla_heads_4bit.cu, ...), so that none takes a compiler
// long.
#pragma once

#include <cstddef>

#include "backend/cuda/attention/norm_mla_heads.cuh"
#include "backend/cuda/host/kernels.h"

namespace sluice::backend::cuda::first_half {

inline constexpr int kPage = static_cast<int>(program::kPageRows);
inline constexpr int kChunk = 32;  // positions; a page is some of them

__device__ inline int sum_slots(const Args& args, int head, int rank) {
  return head_slots(args, head) + rank * (kRank + 2);
}

/// A block's shared memory.
struct alignas(16) Shared {
  char row[activation_bytes(kMostColumns)];
  char x[activation_bytes(kCtx512LowColumns)];   // the low-rank query
  char q_blocks[activation_bytes(32 * kWarps)];  // a share of queries, a copy a warp
  char context[activation_bytes(kRank)];
  float norm[kMostColumns], q_norm[kCtx512LowColumns];
  float q[kMostShares * kShare + kRotated];  // this block's queries: shares, then those to be rotated
  alignas(16) float query[kWidth];
  alignas(16) char current[HalfRow::kBytes];  // the row that this step adds, as the cache holds it
  float weights[kChunk], values[kMostValues];
  SinCos angles[kRotated / 2];
  alignas(16) float other_half[kRank];  // of sums of values
  alignas(16) float partial[3][kWarps];
  alignas(16) char chunk[kChunk * HalfRow::kBytes];  // rows of the cache as they are
  alignas(16) char earlier[HalfRow::kBytes];         // the step's other row, where this one sees it
  SinCos earlier_angles[kRotated / 2];
};

__device__ inline Shared& shared() { return *reinterpret_cast<Shared*>(dynamic_shared(0)); }

/// Slots of the mailbox that a thread takes together: its numbers of the low-rank query, or one of this
/// block's queries, and what it takes of the new row.
#if __CUDA_ARCH__ >= 900
inline constexpr int kMostLowSlots = ctx512_low_columns(90) / kThreads;
#else
inline constexpr int kMostLowSlots = kCtx512LowColumns / kThreads;
#endif
inline constexpr int kTaken = kMostLowSlots + NewRow::kSlots;

/// The head's queries as the cache's rows meet them. The block meets.
__device__ inline void take_queries(const Args& args, int head) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const bool rotates = thread() < kRotated / 2;
  const int first = h.rope.first(thread()), second = h.rope.second(thread(), kRotated / 2);
  const uint64_t* const sums = query_sums(args, head);
  const uint64_t* const at[3] = {sums + thread(), sums + kRank + first, sums + kRank + second};
  float value[3];
  take_sums([&](int i) { return at[i]; }, [&](int i) { return i == 0 || rotates; }, args.shared, value);
  s.query[thread()] = value[0];
  if (rotates) {
    const SinCos sin_cos = s.angles[thread()];
    s.query[kRank + first] = value[1] * sin_cos.cosine - value[2] * sin_cos.sine;
    s.query[kRank + second] = value[1] * sin_cos.sine + value[2] * sin_cos.cosine;
  }
  __syncthreads();
}

/// Blocks of a head that have a chunk of the context.
__device__ inline int attending(const MlaHeadsArgs& args, int position) {
  return min(args.cluster, position / kChunk + 1);
}

/// Attention over this block's chunks, to the mailbox. earlier: position of another row of this step that
/// this one sees, or -1. Either half of the threads has every other position, a thread of it two columns of
/// the latent.
template <typename Row>
__device__ inline void attend_share(const Args& args, int head, int rank, int position, int earlier,
                                    uint32_t flag) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  constexpr float kNone = -INFINITY;
  const int lane = thread() % 32, half = thread() / (kThreads / 2), pair = thread() % (kThreads / 2);
  static_assert(kChunk == 32 && kRotated / 2 == 32);
  float largest = kNone, total = 0, x = 0, y = 0;
#pragma unroll 1
  for (int begin = rank * kChunk; begin <= position; begin += h.cluster * kChunk) {
    const int end = min(begin + kChunk, position + 1);
    if (begin != rank * kChunk) {  // the first chunk was fetched before
      __syncthreads();
      fetch_rows<Row, kThreads>(s.chunk, h.cache.row(h.layer, h.step.slot_of(own_row(), begin)),
                                min(end, position) - begin);
    }
    wait_for_copies();
    // This step's rows are not in the cache yet.
    if (position < end) copy_row<Row>(s.chunk + (position - begin) * Row::kBytes, s.current);
    if (earlier >= 0 && earlier >= begin && earlier < end) {
      __syncthreads();  // what came of the cache in its place has come
      copy_row<Row>(s.chunk + (earlier - begin) * Row::kBytes, s.earlier);
    }
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
  uint64_t* const slots = flagged_slots(args, own_row()) + sum_slots(args, head, rank);
  put_slot(slots + 2 * pair, x + other.x, flag), put_slot(slots + 2 * pair + 1, y + other.y, flag);
  if (thread() == 0) put_slot(slots + kRank, largest, flag), put_slot(slots + kRank + 1, total, flag);
}

/// The head's context from all blocks' sums, quantised. The block meets.
__device__ inline void take_context(const Args& args, const Activations& x, int head, int blocks,
                                    uint32_t flag) {
  const int lane = thread() % 32;
  const uint64_t* const slots = flagged_slots(args, own_row());
  const uint64_t* at[kMostBlocks + 2];
  float value[kMostBlocks + 2];
#pragma unroll
  for (int i = 0; i < kMostBlocks; ++i)
    at[i] = i < blocks ? slots + sum_slots(args, head, i) + thread() : nullptr;
  // A lane finds the factor of a block.
  const uint64_t* const mine = slots + sum_slots(args, head, min(lane, blocks - 1)) + kRank;
  at[kMostBlocks] = mine, at[kMostBlocks + 1] = mine + 1;
  take_each(at, flag, value);
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

template <int kRows, typename Low, typename Q, typename K, typename V, typename Row>
__global__ void __launch_bounds__(kThreads, kRows)
    norm_mla_heads(const Timestamps timestamps, const __grid_constant__ Args args) {
  assume_rows<kRows>();
  const PdlLink pdl(timestamps);
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int rank = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  LowRows<Low> low(args);
  low.ask();
  fetch_norm(s.norm, args.norm, args.columns);
  if (h.q_norm != nullptr) fetch_norm(s.q_norm, h.q_norm, h.in.columns);
  // The step's data was there before the first kernel began.
  const uint32_t flag = args.mailbox.flag();
  if (kRows > 1 && own_row() >= h.step.header->rows) return;
  const int position = __ldg(h.step.positions + own_row()), sequence = __ldg(h.step.sequences + own_row()),
            pages = __ldg(&h.step.header->pages_per_sequence);
  const int earlier = kRows > 1 ? earlier_position(h.step, position, sequence) : -1;
  pdl.wait();

  wait_for_copies();
  const Activations row{offsetof(Shared, row), args.columns, true, false};
  int page = 0;  // of this block's first chunk; if the context is shorter, any page
  float squares = quantize_row(row, args.in + own_row() * args.in_stride, s.norm, [&] {
    page = __ldg(h.step.page_tables + int64_t{sequence} * pages + min(rank * kChunk / kPage, pages - 1));
  });
  squares = lane_sum(squares);
  if (thread() % 32 == 0) s.partial[0][thread() / 32] = squares;
  __syncthreads();
  low.run(row, factor_of(s.partial[0], args.columns, args.epsilon), flag);

  const Share share = args.shares[rank];
  auto q = lane_rows<Q, kThreads>(h.q, share.count, [&](int i) {
    return static_cast<int>(h.q.first_row) + query_row(h, share, head, rank, i);
  });
  const bool multiplies = h.q.codes != nullptr;
  if (multiplies) q.ask();
  K k_b;
  if (share.shares > 0) load_latent_row(h, head, rank, k_b);
  const bool adds = position / kChunk % h.cluster == rank || (rank == 0 && head == 0);
  const NewRow added(args, own_row(), adds);
  const uint64_t* at[kTaken];
#pragma unroll
  for (int i = 0; i < kMostLowSlots; ++i) {
    const int n = i * kThreads + thread();
    const bool wanted = multiplies ? n < h.in.columns : n < share.count;
    const int word = multiplies ? n : query_row(h, share, head, rank, n);
    at[i] = wanted ? flagged_slots(args, own_row()) + kQuerySlots + word : nullptr;
  }
#pragma unroll
  for (int i = 0; i < NewRow::kSlots; ++i) at[kMostLowSlots + i] = added.at[i];
  float taken[kTaken];
  if (thread() % kWarps == 0)  // some threads of each warp
    s.angles[thread() / kWarps] = h.rope.sin_cos(position, thread() / kWarps, h.factors);
  if (earlier >= 0 && thread() % kWarps == 1)
    s.earlier_angles[thread() / kWarps] = h.rope.sin_cos(earlier, thread() / kWarps, h.factors);
  // Rows of earlier positions were there before this step.
  fetch_rows<Row, kThreads>(s.chunk, h.cache.row(h.layer, int64_t{page} * kPage + rank * kChunk % kPage),
                            min(kChunk, position - rank * kChunk));
  take_each(at, flag, taken);
  make_queries<kMostLowSlots>(args, s, {offsetof(Shared, x), h.in.columns, true, false}, q, taken);
  add_queries(args, s, {offsetof(Shared, q_blocks), 32 * kWarps, true, false}, head, rank, share, k_b);
  if (adds) {
    added.put<Row>(args, taken + kMostLowSlots, s.angles, s.partial[2], s.current);
    append<Row>(h, s.current);
  }
  if (earlier >= 0 && earlier / kChunk % h.cluster == rank) {
    const NewRow seen(args, 1 - own_row(), true);
    float numbers[NewRow::kSlots];
    take_each(seen.at, flag, numbers);
    seen.put<Row>(args, numbers, s.earlier_angles, s.partial[0], s.earlier);
  }

  const int values = h.out.columns, v_first = min(rank * h.each, values);
  const int v_row = static_cast<int>(h.v_b.row(head, v_first));
  auto v = lane_rows<V, kThreads>(h.v_b, min(h.each, values - v_first), [v_row](int i) { return v_row + i; });
  const int64_t v_bytes = code_bytes(h.v_b.type, kRank);
  prefetch_range(h.v_b.codes + v_row * v_bytes, v.count * v_bytes);
  const int blocks = attending(h, position);
  if (rank < blocks) {
    take_queries(args, head);
    attend_share<Row>(args, head, rank, position, earlier, flag);
  }
  if (v.count <= 0) return;
  v.ask();
  const Activations context{offsetof(Shared, context), kRank, true, false};
  take_context(args, context, head, blocks, flag);
  if (rank == 0) clear_queries(args, head);
  v.multiply(context, [&](int i, float value) { h.out(own_row(), head)[v_first + i] = s.values[i] = value; });
  if (h.form_at == nullptr) return;
  __syncthreads();
  put_codes<kRows>(args, s.values, v.count, head * values + v_first);
}

static_assert(sizeof(Shared) <= kMostShared && kMostRows * sizeof(Shared) <= 2 * kMostShared);

template <typename Low, typename Q, typename K, typename V>
void start_ctx512(const Args& args, const Context& context) {
  const MlaHeadsArgs& h = args.heads;
  const auto start = [&]<int kRows>() {
    launch(context,
           h.cache.coded > 0 ? norm_mla_heads<kRows, Low, Q, K, V, CodedRow>
                             : norm_mla_heads<kRows, Low, Q, K, V, HalfRow>,
           {dim3(static_cast<unsigned>(h.cluster), static_cast<unsigned>(h.out.heads), kRows), dim3(kThreads),
            static_cast<int64_t>(sizeof(Shared))},
           args);
  };
  if constexpr (takes_two_rows<Low, Q, K, V>())
    if (context.step_rows > 1) return start.template operator()<2>();
  start.template operator()<1>();
}

}  // namespace sluice::backend::cuda::first_half
