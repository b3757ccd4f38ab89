// norm_mla_heads of one or two rows over a long context, in one launch of thread blocks, all on the device at
// a time, that hand each other numbers over the mailbox (prim/mailbox.cuh), three times:
//
//   the row normed, low-rank query and latent (a, b), by all blocks for all | queries of a head shared by its
//   blocks, their part of its latent queries (q, k_b) | attention: a block has some heads and a part of the
//   context | parts put together, values (v_b)
//
// Attention: groups of heads (four of five for GLM-4.7-Flash) times parts of the context are the blocks. What
// earlier steps have put into the cache does not depend on this one, so a block asks for its rows while its
// latent queries are summed up. The blocks of a part are a cluster where as many clusters fit on the device:
// each brings some of the rows to all of them. Of a piece of rows
//   scores   each of four warps has a quarter of the columns, of four such fours each every fourth sixteen
//            positions; the quarters meet in shared memory
//   softmax  a warp a head (a running maximum: Milakov and Gimelshein 2018)
//   values   each warp has 32 of the 512 columns for all heads of the block
// Positions or columns are the rows of the matrix instructions, heads their eight columns. A part of a head's
// context goes over the mailbox as halves, four a word, without flags (kPartSlots).
//
// Of two rows each has half of the blocks, and where both are of one sequence the second row's make the first
// one's row of the cache for themselves.
//
// Bound by the chain of steps and trips (docs/kernels/attention.md), not by memory.
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <numbers>
#include <variant>

#include "backend/cuda/attention/mla_values.cuh"
#include "backend/cuda/attention/norm_mla_heads_ctx8k.cuh"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/experts_small_batch.h"

namespace sluice::backend::cuda::first_half {
namespace {

using namespace ctx8k;

constexpr int64_t kLongestContext =
    8192;  // a bucket; 6% over mla_heads_split_kv.cu there (H200), less beyond

/// Parts of contexts lie on the mailbox without flags, which would be as many bytes again: a word is there
/// once it is not zero. There is room for them twice: a launch takes what the one before it has made zero,
/// and makes the other one zero. Of a head: 512 halves of each part, two of which are never zero together,
/// and of each part the largest score (low) and the sum of the weights below it, which is 1 or more.
constexpr int kPartSlots = kRank / 4;
SLUICE_BOTH inline int slots_of_parts(int parts) { return parts * kPartSlots + (parts + 1) / 2 * 2; }
/// Where they begin among the zeroed slots: behind the counted ones and the number of launches.
constexpr int kLaunchCountSlot = kCountedSlots, kPartsBegin = kLaunchCountSlot + 2;
__device__ inline uint64_t* launch_count_slot(const Args& args) {
  return zeroed_slots(args) + kLaunchCountSlot;
}
__device__ inline uint64_t* head_parts(const Args& args, uint32_t launch_count, int head) {
  const int heads = args.heads.out.heads;
  return zeroed_slots(args) + kPartsBegin + (launch_count % 2 * heads + head) * args.head_slots;
}
__device__ inline uint64_t* part_weights(const Args& args, uint32_t launch_count, int head) {
  return head_parts(args, launch_count, head) + args.parts * kPartSlots;
}

__device__ inline void put_pair(uint64_t* at, uint32_t low, uint32_t high) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(uint64_t{high} << 32 | low) : "memory");
}
/// Two halves, minus zero for two zeroes.
__device__ inline uint32_t never_zero(uint32_t halves) { return halves == 0 ? 0x80008000u : halves; }

/// Makes the room of parts zero that the next launch takes.
__device__ inline void clear_parts(const Args& args, uint32_t launch_count) {
  auto* const to = reinterpret_cast<uint4*>(head_parts(args, launch_count + 1, 0));
  const int all = args.heads.out.heads * args.head_slots / 2;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + thread(); i < all;
       i += static_cast<int>(gridDim.x) * kThreads)
    to[i] = uint4{0, 0, 0, 0};
}

/// The latent queries of this block's heads, as the matrix instructions take them. kBoth: no more than four,
/// whose second halves are heads of their own in the same tile. The block meets.
template <bool kBoth>
__device__ inline void take_latent_queries(const Args& args, const Work& work) {
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int lane = thread() % 32, of = thread() / (kRotated / 2), pair = thread() % (kRotated / 2);
  const bool rotates = of < work.heads;
  const int first = h.rope.first(pair), second = h.rope.second(pair, kRotated / 2);
  const uint64_t* const latents = query_sums(args, work.first_head) + thread();
  const uint64_t* const rotated = query_sums(args, work.first_head + min(of, work.heads - 1)) + kRank;
  const uint64_t *const a_slot = rotated + first, *const b_slot = rotated + second;
  float value[kHeads + 2];
  take_sums([&](int i) { return i < kHeads    ? latents + i * kWidth
                                : i == kHeads ? a_slot
                                              : b_slot; },
            [&](int i) { return i < kHeads ? i < work.heads : rotates; }, args.shared, value);
  const SinCos sin_cos = s.angles[pair];
  const float a = value[kHeads] * sin_cos.cosine - value[kHeads + 1] * sin_cos.sine;
  const float b = value[kHeads] * sin_cos.sine + value[kHeads + 1] * sin_cos.cosine;
  float most = fmaxf(fabsf(a), fabsf(b));
#pragma unroll
  for (int i = 0; i < kHeads; ++i) most = fmaxf(most, fabsf(value[i]));
  const uint32_t bits = __reduce_max_sync(kWholeWarp, __float_as_uint(most));
  if (lane == 0) atomicMax(&s.largest, bits);
  __syncthreads();
  // Split into two halves a number (high, and the rounding error of high); a power of two for all heads keeps
  // them far from the ends of a half's range.
  const float factor = 1.0f / query_unscale(__uint_as_float(s.largest));
  const auto word = [](int head, int pair) {
    return SplitQueries::at(0, pair / 8, head * 4 + pair % 4) * 2 + pair % 8 / 4;
  };
  auto* const firsts = reinterpret_cast<uint32_t*>(s.first);
  auto* const seconds = kBoth ? firsts + word(kHeads / 2, 0) : reinterpret_cast<uint32_t*>(s.second);
  // Even lanes put the first halves of two columns, odd lanes the second ones.
  const bool odd = lane % 2 == 1;
  uint32_t* const mine = odd ? seconds : firsts;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= work.heads) break;
    const float v = value[i] * factor, other = __shfl_xor_sync(kWholeWarp, v, 1);
    const float x = odd ? other : v, y = odd ? v : other;
    const __half2 high = __floats2half2_rn(x, y);
    mine[word(i, thread() / 2)] = odd ? pack_halves(x - __low2float(high), y - __high2float(high))
                                      : *reinterpret_cast<const uint32_t*>(&high);
  }
  if (rotates) {
    const auto put = [&](int column, float x) {
      const __half high = __float2half_rn(x), low = __float2half_rn(x - __half2float(high));
      const int at_half = word(of, (kRank + column) / 2) * 2 + column % 2;
      reinterpret_cast<__half*>(firsts)[at_half] = high, reinterpret_cast<__half*>(seconds)[at_half] = low;
    };
    put(first, a * factor), put(second, b * factor);
  }
  __syncthreads();
}

/// Weighed values of a warp's columns, and the sums of the weights: of this lane's two heads, what a column
/// of ones would come to.
struct WeighedSums : QueryColumnSums<1, kWarpColumns> {
  float weights[4] = {};

  __device__ __forceinline__ void rescale(const float* keep) {
    QueryColumnSums<1, kWarpColumns>::rescale(keep);
    const int t = thread() % 4;
    weights[0] *= keep[2 * t], weights[1] *= keep[2 * t + 1];
  }
  /// Where a lane reads the first 16 columns of a piece.
  __device__ static uint32_t lane_at(uint32_t rows) {
    const int lane = thread() % 32, unit = thread() / 32 * (kWarpColumns / 8) + lane / 8 % 2;
    return rows + lane / 16 * kEightBytes + unit / 8 * 1024 + lane % 8 * 128 + (unit % 8 ^ lane % 8) * 16;
  }
  /// Of the 16 rows from `rows` (lane_at) on.
  __device__ __forceinline__ void add(const uint16_t* from, uint32_t rows) {
    const int lane = thread() % 32;
    constexpr uint32_t kOnes = 0x3c003c00u, ones[4] = {kOnes, kOnes, kOnes, kOnes};
    const auto* const at = reinterpret_cast<const uint32_t*>(from + lane / 4 * kWeightStride) + lane % 4;
    const uint32_t low = at[0], high = at[4];  // positions 0..7 and 8..15
#pragma unroll
    for (int m = 0; m < kWarpColumns / 16; ++m) {
      uint32_t value[4];  // columns by positions
      load_matrices_transposed(value, rows ^ m * 32);
      mma_16x8x16(of[m][0], value, low, high);
    }
    mma_16x8x16(weights, ones, low, high);
  }
};

/// The largest of a warp's numbers: as whole numbers they are in order once those below zero are flipped.
__device__ inline float largest_of_warp(float x) {
  const auto flipped = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flipped(__reduce_max_sync(kWholeWarp, flipped(__float_as_int(x)))));
}

/// Attention of this block's heads over its part of the context, to the mailbox. earlier: position of another
/// row of this step that this one sees, or -1.
template <bool kBoth>
__device__ inline void attend_part(const LongArgs& args, const Work& work, int position, int earlier,
                                   int sequence, int pages, uint32_t launch_count) {
#if __CUDA_ARCH__ >= 900
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int lane = thread() % 32, warp = thread() / 32, g = lane / 4, t = lane % 4;
  const int quarter = warp % kQuarters, set = warp / kQuarters;
  const uint32_t rows = shared_address(s.rows);
  const float factor = h.scale * std::numbers::log2e_v<float> * query_unscale(__uint_as_float(s.largest));
  float largest = -INFINITY;  // of the head that is this warp's
  WeighedSums sum;
  const int first_step = SplitQueries::at(0, quarter, lane);
  // Where a lane reads its quarter of the first block of columns, and its warp's columns of the values.
  const uint32_t keys =
      rows + lane % 16 / kEight * kEightBytes + lane % 8 * 128 + ((quarter * 2 + lane / 16) ^ lane % 8) * 16;
  const uint32_t columns = WeighedSums::lane_at(rows);
  uint2 high[kQuarterSteps], low[kQuarterSteps];  // both halves of this lane's queries
#pragma unroll
  for (int i = 0; i < kQuarterSteps; ++i) {
    high[i] = reinterpret_cast<const uint2*>(s.first)[first_step + 32 * kQuarters * i];
    if (!kBoth) low[i] = reinterpret_cast<const uint2*>(s.second)[first_step + 32 * kQuarters * i];
  }
#pragma unroll 1
  for (int piece = 0; piece < work.pieces; ++piece) {
    const int count = work.count_of(piece), whole = (count + 15) / 16 * 16;
    barrier_wait(shared_address(&s.rows_there), static_cast<uint32_t>(piece % 2));
    // This step's rows are not in the cache yet.
    const int added = position - work.first_of(piece), seen = earlier - work.first_of(piece);
    const bool sees = earlier >= 0 && seen >= 0 && seen < count;
    constexpr int kUnits = HalfRow::kBytes / 16;
    if (added < count && thread() < kUnits)
      unit_of(added, thread()) = reinterpret_cast<const uint4*>(s.current)[thread()];
    if (sees && thread() < kUnits)
      unit_of(seen, thread()) = reinterpret_cast<const uint4*>(s.earlier)[thread()];
    if (count < whole) {
      // Rows that are not there: weights of zero do not make up for what is no number.
      for (int i = thread(); i < (whole - count) * kUnits; i += kThreads) {
        const int row = i / kUnits, unit = i - row * kUnits;
        unit_of(count + row, unit) = {0, 0, 0, 0};
      }
    }
    if (added < count || sees || count < whole) __syncthreads();

    constexpr int kSets = kWarps / kQuarters;
#pragma unroll 1
    for (int at = set * 16; at < count; at += kSets * 16) {
      // All of a tile's rows at once, so that they do not wait for each other.
      uint32_t key[kQuarterSteps][4];
#pragma unroll
      for (int i = 0; i < kQuarterSteps; ++i)
        load_matrices(key[i], keys + at / kEight * kEightBytes + i * 1024);
      // Positions by heads; of the queries' first and second halves, of every other step.
      float score[4][4] = {};
#pragma unroll
      for (int i = 0; i < kQuarterSteps; ++i) {
        mma_16x8x16(score[i % 2], key[i], high[i].x, high[i].y);
        if (!kBoth) mma_16x8x16(score[2 + i % 2], key[i], low[i].x, low[i].y);
      }
      float* const to = s.scores + (quarter * kHeads + 2 * t) * kScoreStride + at + g;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float sum = (score[0][k] + score[1][k]) + (score[2][k] + score[3][k]);
        if (kBoth) sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        to[k % 2 * kScoreStride + k / 2 * 8] = sum;
      }
    }
    __syncthreads();

    if (warp < kHeads) {
      constexpr int kEach = (kPiece + 31) / 32;
      float value[kEach], most = -INFINITY;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = 32 * i + lane;
        value[i] = 0;
#pragma unroll
        for (int k = 0; k < kQuarters; ++k)
          value[i] += s.scores[(k * kHeads + warp) * kScoreStride + min(at, kPiece - 1)];
        value[i] = at < count ? value[i] * factor : -INFINITY;
        most = fmaxf(most, value[i]);
      }
      const float now = fmaxf(largest, largest_of_warp(most)), keep = exp2f(largest - now);
      largest = now;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float weight = exp2f(value[i] - now);
        if (32 * i + lane < kPiece)
          reinterpret_cast<__half*>(s.weights)[warp * kWeightStride + 32 * i + lane] =
              __float2half_rn(weight);
      }
      if (lane == 0) s.shrink[warp] = keep;
    }
    __syncthreads();

    if (piece > 0) sum.rescale(s.shrink);
#pragma unroll 3
    for (int at = 0; at < count; at += 16) sum.add(s.weights + at, columns + at / kEight * kEightBytes);
    if (piece + 1 == work.pieces) break;
    cluster_here();
    cluster_all();  // they are done with this piece
    ask_for_rows(args, work, piece + 1, position,
                 PieceRows(args, work, piece + 1, position, sequence, pages));
  }
  const float inverse[2] = {__fdividef(1.0f, sum.weights[0]), __fdividef(1.0f, sum.weights[1])};
  if (warp < work.heads && lane == warp / 2)
    put_pair(part_weights(args, launch_count, work.first_head + warp) + work.part, __float_as_uint(largest),
             __float_as_uint(warp % 2 == 0 ? sum.weights[0] : sum.weights[1]));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * t + i >= work.heads) break;
    static_assert(kWarpColumns == 32);
    uint32_t pair[2];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      pair[m] = never_zero(pack_halves(sum.of[m][0][i] * inverse[i], sum.of[m][0][2 + i] * inverse[i]));
    put_pair(
        head_parts(args, launch_count, work.first_head + 2 * t + i) + work.part * kPartSlots + warp * 8 + g,
        pair[0], pair[1]);
  }
#endif
}

/// The head's context from its parts, quantised. The block meets.
__device__ inline void take_context(const Args& args, const Activations& x, int head, int parts,
                                    uint32_t launch_count) {
#if __CUDA_ARCH__ >= 900
  Shared& s = shared();
  constexpr int kEach = kMostParts / kPartGroups, kUnits = kRank / 8;
  const int lane = thread() % 32, group = thread() / kUnits, unit = thread() % kUnits;
  const auto* const mine = reinterpret_cast<const uint4*>(head_parts(args, launch_count, head)) + unit;
  // A lane finds the factor of a part.
  const uint64_t* const of_lane = part_weights(args, launch_count, head) + min(lane, parts - 1);
  uint64_t weights = 0;
  uint4 part[kEach];  // of every kPartGroups-th
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t none = group + i * kPartGroups < parts ? 0 : 1;
    part[i] = {none, none, none, none};
  }
  bool all;
#pragma unroll 1
  do {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      asm volatile(
          "{\n .reg .pred p;\n .reg .b32 a, b;\n min.u32 a, %0, %1;\n min.u32 b, %2, %3;\n"
          " min.u32 a, a, b;\n setp.eq.u32 p, a, 0;\n"
          " @p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "+r"(part[i].x), "+r"(part[i].y), "+r"(part[i].z), "+r"(part[i].w)
          : "l"(mine + (group + i * kPartGroups) * (kPartSlots / 2))
          : "memory");
    }
    asm volatile("{\n .reg .pred p;\n setp.eq.u64 p, %0, 0;\n @p ld.relaxed.gpu.global.u64 %0, [%1];\n}"
                 : "+l"(weights)
                 : "l"(of_lane)
                 : "memory");
    all = weights != 0;
#pragma unroll
    for (const uint4& one : part) all &= min(min(one.x, one.y), min(one.z, one.w)) != 0;
  } while (!all);
  const float best = lane < parts ? __uint_as_float(static_cast<uint32_t>(weights)) : -INFINITY;
  const float weight = exp2f(best - lane_max(best)) * __uint_as_float(static_cast<uint32_t>(weights >> 32));
  const float factor = __fdividef(lane < parts ? weight : 0.0f, lane_sum(lane < parts ? weight : 0.0f));
  float sum[8] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float share = __shfl_sync(kWholeWarp, factor, group + i * kPartGroups);
    const uint32_t words[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[w]));
      sum[2 * w] += share * two.x, sum[2 * w + 1] += share * two.y;
    }
  }
  __syncthreads();  // all warps are done with what lies there
  auto* const to = reinterpret_cast<float4*>(s.sums[group] + unit * 8);
  to[0] = {sum[0], sum[1], sum[2], sum[3]}, to[1] = {sum[4], sum[5], sum[6], sum[7]};
  __syncthreads();
  // A lane's two words of a part are columns g and 8 + g, 16 + g and 24 + g of a warp's 32 (attend_part).
  const int at = thread() - lane + lane % 8 * 4 + lane / 16 * 2 + lane / 8 % 2;
  float context = 0;
#pragma unroll
  for (int i = 0; i < kPartGroups; ++i) context += s.sums[i][at];
  quantize_lanes(x, thread() / 32, context);
  __syncthreads();
#endif
}

template <int kRows, typename Low, typename Q, typename K, typename V, bool kBoth>
__global__ void __launch_bounds__(kThreads, 1)
    norm_mla_heads_ctx8k(const Timestamps timestamps, const __grid_constant__ LongArgs args) {
#if __CUDA_ARCH__ >= 900
  assume_rows<kRows>();
  const PdlLink pdl(timestamps);
  Shared& s = shared();
  const MlaHeadsArgs& h = args.heads;
  const int head = quotient(static_cast<int>(blockIdx.x), h.cluster);
  const int rank = static_cast<int>(blockIdx.x) - head * h.cluster;
  if (kRows > 1 && own_row() >= h.step.header->rows) return;
  LowRows<Low> low(args);
  low.ask();
  fetch_norm(s.norm, args.norm, args.columns);
  if (h.q_norm != nullptr) fetch_norm(s.q_norm, h.q_norm, h.in.columns);
  if (thread() == 0) {
    barrier_init(shared_address(&s.rows_there), 1), barrier_init(shared_address(&s.k_there), 1);
    barrier_init(shared_address(&s.q_there), 1);
    barrier_init_fence();
    s.largest = 0;
  }
  __syncthreads();
  if (args.early) cluster_here();
  // The step's data was there before the first kernel began.
  const uint32_t flag = args.mailbox.flag();
  const int position = __ldg(h.step.positions + own_row()), sequence = __ldg(h.step.sequences + own_row()),
            pages = __ldg(&h.step.header->pages_per_sequence);
  const int earlier = kRows > 1 ? earlier_position(h.step, position, sequence) : -1;
  pdl.wait();

  uint32_t launch_count = 0;
  if (thread() == 0)
    launch_count =
        static_cast<uint32_t>(load_result(reinterpret_cast<const int32_t*>(launch_count_slot(args))));
  wait_for_copies();
  const Activations row{offsetof(Shared, row), args.columns, true, false};
  float squares = quantize_row(row, args.in + own_row() * args.in_stride, s.norm, [] {});
  squares = lane_sum(squares);
  if (thread() % 32 == 0) s.partial[0][thread() / 32] = squares;
  if (thread() == 0) s.launch_count = launch_count;
  __syncthreads();
  launch_count = s.launch_count;
  const bool multiplies = h.q.codes != nullptr;
  const Share share = args.shares[rank];
  auto q = lane_rows<Q, kThreads>(h.q, share.count, [&](int i) {
    return static_cast<int>(h.q.first_row) + query_row(h, share, head, rank, i);
  });
  const CopiedQueries<Q> copied(args, share);
  if constexpr (CopiedQueries<Q>::kServes) {
    if (multiplies && thread() == 0) copied.ask(h, share, head, rank);
  } else if (multiplies) {
    q.ask();
  }
  if constexpr (CopiedShare<K>::kServes) {
    if (share.shares > 0 && thread() == 0) CopiedShare<K>::ask(args, head, rank);
  } else {
    // A share of k_b is some bytes of each row: lanes would ask for a line each while the words are awaited.
    const int64_t k_bytes = code_bytes(h.k_b.type, h.nope) * kRank / h.cluster;
    prefetch_range(h.k_b.codes + h.k_b.row(head, 0) * code_bytes(h.k_b.type, h.nope) + rank * k_bytes,
                   k_bytes);
  }
  low.run(row, factor_of(s.partial[0], args.columns, args.epsilon), flag);

  const Work work(args, position + 1);
  const bool adds = work.begin <= position && position < work.end;
  const NewRow added(args, own_row(), adds || (rank == 0 && head == 0));
  clear_parts(args, launch_count);
  const PieceRows first_piece(args, work, 0, position, sequence, pages);
  constexpr int kLowSlots = kMostLowColumns / kThreads;
  if (thread() % kWarps == 0)  // some threads of each warp
    s.angles[thread() / kWarps] = h.rope.sin_cos(position, thread() / kWarps, h.factors);
  const bool sees = earlier >= 0 && work.begin <= earlier && earlier < work.end;
  if (sees && thread() % kWarps == 1)
    s.earlier_angles[thread() / kWarps] = h.rope.sin_cos(earlier, thread() / kWarps, h.factors);

  const uint64_t* const queries = flagged_slots(args, own_row()) + kQuerySlots;
  float taken[kLowSlots + NewRow::kSlots];
  take_each(
      [&](int i) {
        const int n = i * kThreads + thread();
        return i >= kLowSlots ? added.at[i - kLowSlots]
                              : queries + (multiplies ? n : query_row(h, share, head, rank, n));
      },
      [&](int i) {
        return i < kLowSlots ? i * kThreads + thread() < (multiplies ? h.in.columns : share.count)
                             : added.at[i - kLowSlots] != nullptr;
      },
      flag, taken);
  if (args.early) {
    cluster_all();  // they have begun
    ask_for_rows(args, work, 0, position, first_piece);
  }
  K k_b;
  if constexpr (CopiedShare<K>::kServes) {
    if (share.shares > 0) CopiedShare<K>::ask_scale(h, head, rank, k_b);
  } else if (share.shares > 0) {
    load_latent_row(h, head, rank, k_b);
  }
  const Activations low_query{offsetof(Shared, x), h.in.columns, true, false};
  if constexpr (CopiedQueries<Q>::kServes) {
    make_queries<kLowSlots>(args, s, low_query, copied, taken);
  } else {
    make_queries<kLowSlots>(args, s, low_query, q, taken);
  }
  if (!args.early) cluster_here();
  if constexpr (CopiedShare<K>::kServes) {
    if (share.shares > 0) CopiedShare<K>::take(k_b);
  }
  add_queries(args, s, {offsetof(Shared, q_blocks), 32 * kWarps, true, false}, head, rank, share, k_b);
  if (adds || (rank == 0 && head == 0)) {
    added.put<HalfRow>(args, taken + kLowSlots, s.angles, s.partial[2], s.current);
    append<HalfRow>(h, s.current);
  }
  if (sees) {
    const NewRow seen(args, 1 - own_row(), true);
    float numbers[NewRow::kSlots];
    take_each(seen.at, flag, numbers);
    seen.put<HalfRow>(args, numbers, s.earlier_angles, s.partial[0], s.earlier);
  }
  if (!args.early) {
    cluster_all();  // they have their queries
    // Not before: what warps ask of shared memory would wait behind the copies.
    ask_for_rows(args, work, 0, position, first_piece);
  }

  const int values = h.out.columns, v_first = min(rank * h.each, values);
  const int v_row = static_cast<int>(h.v_b.row(head, v_first));
  auto v =
      lane_rows<V, kThreads, 2>(h.v_b, min(h.each, values - v_first), [v_row](int i) { return v_row + i; });
  const int64_t v_bytes = code_bytes(h.v_b.type, kRank);
  prefetch_range(h.v_b.codes + v_row * v_bytes, v.count * v_bytes);
  if (work.end > work.begin) {
    take_latent_queries<kBoth>(args, work);
    attend_part<kBoth>(args, work, position, earlier, sequence, pages, launch_count);
  }
  if (v.count <= 0) return;
  v.ask();
  const Activations context{offsetof(Shared, context), kRank, true, false};
  take_context(args, context, head, Work::parts_of(args, position + 1), launch_count);
  if (rank == 0) clear_queries(args, head);
  // This block has had words of all others, who had read it before (LowRows: each has a task of b or more).
  if (blockIdx.x == 0 && thread() == 0) *launch_count_slot(args) = launch_count + 1;
  v.multiply(context, [&](int i, float value) { h.out(own_row(), head)[v_first + i] = s.values[i] = value; });
  if (h.form_at == nullptr) return;
  __syncthreads();
  put_codes<kRows>(args, s.values, v.count, head * values + v_first);
#endif
}

/// Into how many groups `blocks` blocks divide the heads; none if they can't.
int groups_of(int heads, int blocks) {
  for (int groups = 1; groups <= kMostInCluster; ++groups) {
    if (blocks % groups == 0 && blocks / groups <= kMostParts && (heads + groups - 1) / groups <= kHeads)
      return groups;
  }
  return 0;
}

}  // namespace

bool long_context_serves(const program::Program& program, const program::NormMlaHeads& op,
                         const Sizes& sizes) {
  const program::MlaQuery& query = op.heads.query;
  const int64_t low = query.q ? program[query.q.id].columns() : 0;
  const int64_t heads = program[op.heads.out.id].heads();
  // Copies of its rows are whole sixteens of bytes.
  if (query.q && program[query.q.id].type == quant::Type::Q4_0 && low % 256 != 0) return false;
  const int64_t blocks = heads * ctx8k_blocks_of_head(heads, sizes.rows, sizes.sm_count);
  return heads * sizes.rows <= sizes.sm_count &&
         groups_of(static_cast<int>(heads), static_cast<int>(blocks)) != 0 &&
         sizes.longest <= kLongestContext && (sizes.architecture == 90 || sizes.architecture == 100) &&
         program[query.cache.id].cache_row().type == quant::Type::F16 && low <= kMostLowColumns;
}

Ctx8kSlots ctx8k_slots(int64_t heads, int64_t rows, int sm_count) {
  const auto blocks = static_cast<int>(heads * ctx8k_blocks_of_head(heads, rows, sm_count));
  const int parts = blocks / groups_of(static_cast<int>(heads), blocks);
  return {kPartsBegin - kCountedSlots + 2 * heads * slots_of_parts(parts), heads << 32 | parts};
}

void start_long_context(Args most_args, const Context& context) {
  // How many rows the cache has is nothing that a kernel is told; the pages' table says where they are.
  constexpr int64_t kMostRows = int64_t{1} << 30;
  LongArgs args{};
  static_cast<Args&>(args) = most_args;
  args.rows = map_rows(reinterpret_cast<const uint8_t*>(most_args.heads.cache.data), HalfRow::kBytes,
                       kMostRows, kBlocks);
  const MlaHeadsArgs& h = args.heads;
  const int heads = h.out.heads, blocks = heads * h.cluster;
  const auto rows = static_cast<int>(context.step_rows);
  if (const Matrix& m = h.k_b; m.type == quant::Type::Q4_0 || m.type == quant::Type::Q8_0) {
    const int bytes = find_format(m.type)->codes;
    args.n_tiles =
        map_n_tiles(m.codes, int64_t{h.nope} / kShare * bytes, m.row(m.matrices - 1, m.rows), bytes);
  }
  args.groups = groups_of(heads, blocks);
  args.parts = blocks / args.groups;
  args.head_slots = slots_of_parts(args.parts);
  args.row_slots = kQuerySlots + args.a.rows;
  args.zeroed_row_slots = static_cast<int>(kCountedSlots + ctx8k_slots(heads, rows, context.sm_count).slots);
  // One piece where that is enough, and no more shared memory than it takes.
  const auto most = static_cast<int>(((context.longest + 15) / 16 + args.parts - 1) / args.parts * 16);
  args.piece = std::min(most, kPiece);
  const bool both = (heads + args.groups - 1) / args.groups <= kHeads / 2;
  const auto kernel =
      with_types(args, [both, rows]<typename Low, typename Q, typename K, typename V>(Types<Low, Q, K, V>) {
        if constexpr (takes_two_rows<Low, Q, K, V>())
          if (rows > 1) return norm_mla_heads_ctx8k<2, Low, Q, K, V, false>;
        return both ? norm_mla_heads_ctx8k<1, Low, Q, K, V, true>
                    : norm_mla_heads_ctx8k<1, Low, Q, K, V, false>;
      });
  int most_queries = 0;  // rows of q that lie where rows of the cache will be
  for (int rank = 0; rank < h.cluster; ++rank) most_queries = std::max(most_queries, args.shares[rank].count);
  if (h.q.codes == nullptr || h.q.type != quant::Type::Q4_0) most_queries = 0;
  const int query_bytes = most_queries * (h.q.columns / 32) * 18;
  args.early = query_bytes <= kCopiedBytes;
  args.q_at = static_cast<int>(args.early ? offsetof(Shared, q_rows) : offsetof(Shared, rows));
  LaunchShape shape{dim3(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(rows)), dim3(kThreads),
                    static_cast<int64_t>(offsetof(Shared, rows)) +
                        std::max(args.piece * HalfRow::kBytes, args.early ? 0 : query_bytes),
                    args.groups};
  // All of them are on the device at a time, or they would wait for ever.
  while (shape.cluster > 1 &&
         (args.groups % shape.cluster != 0 || most_clusters(kernel, shape) < rows * blocks / shape.cluster))
    --shape.cluster;
  args.in_cluster = shape.cluster;
  launch(context, kernel, shape, args);
}

}  // namespace sluice::backend::cuda::first_half
