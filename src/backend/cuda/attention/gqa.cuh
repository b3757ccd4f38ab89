// What the kernels of grouped attention share (attention/gqa_*.cu): a step's arguments, which rows attend
// together, how a row's context is split, queries as operands. The query heads that share a head of keys and
// values (a group) are rows of the matrix instructions, so that keys and values are read once for all of
// them.
//
// Rows of a sequence that follow each other are a stretch. In steps of few rows, and in stretches of few,
// every row attends by itself, its context in chunks (attention/gqa_split_kv.cu). The rows of longer
// stretches attend by tiles of 128 queries (attention/gqa_prefill_mma.cu, attention/gqa_prefill_wgmma.cu); in
// a step of one sequence (Context::one_sequence) all do, their context in chunks.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <climits>

#include "backend/cuda/attention/gqa_query.cuh"
#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/mma.cuh"

namespace sluice::backend::cuda {

inline constexpr int kGroupQueries = 16;         ///< heads of a group at most: rows of a matrix instruction
inline constexpr int kTileQueries = 128;         ///< of a tile of rows
inline constexpr int64_t kSplitKvRows = 32;      ///< rows of a step up to which every row attends by itself
inline constexpr int64_t kMostAttending = 8192;  ///< rows of a step at most
inline constexpr int kStretch = 8;               ///< rows of a stretch from which on they attend by tiles
inline constexpr int kAttendChunks = 64;         ///< of a row's context at most
inline constexpr int kJoinedChunks = 8;          ///< at most that the last one's block puts together
inline constexpr int64_t kMadeRows = 8;          ///< rows of a step whose heads are made where they attend
inline constexpr int kMostBiased = 64;           ///< columns of such heads with biases: more spill registers
/// In steps of more rows the first ones' contexts are split, too: answers come first.
inline constexpr int kPrefillSplitRows = 128, kPrefillChunks = 8;

struct AttendArgs {
  StepView step;
  Cache cache;
  Rows<float> q, out, gate;  ///< gate: no data, or results are times 1 / (1 + e^-gate)
  int32_t layer, groups, heads_a_group;
  int32_t window;         ///< positions that a row sees at the end of its context; 0: all
  const float* sinks;     ///< null, or a score of each head that takes weight and has no value
  float scale_log2;       ///< the scale of the scores times log2(e): weights are powers of two
  bool few;               ///< all rows attend by themselves, or together
  bool together;          ///< rows of one sequence: tiles of them, whose contexts are in chunks
  int32_t split, chunks;  ///< the context of a row before `split` has so many chunks at most
  float2* weights;        ///< [row][chunk][head]: the largest score, the sum of the weights below it
  float* parts;           ///< [row][chunk][head][column]
  /// [row][group], zero: counts chunks that have come, so that the last one's block puts them together; null:
  /// a launch of its own does.
  unsigned long long* arrived;
  char* codes;  ///< null, or where a step of few rows leaves its results in codes, too (Form::RowsCodes)
  int8_mma::TokenRows coded;

  /// Rows of a tile.
  SLUICE_BOTH int tile_rows() const { return kTileQueries / heads_a_group; }
  /// The first page that a row sees of a context of this length, in positions.
  SLUICE_BOTH int first_page(int length) const {
    return window > 0 && length > window
               ? (length - window) / int{program::kPageRows} * int{program::kPageRows}
               : 0;
  }
  /// Positions of a chunk, whole pages, where a context of this length has `most` chunks at most.
  SLUICE_BOTH int chunk_rows(int length, int most) const {
    constexpr int kPage = program::kPageRows;
    const int pages = (length - first_page(length) + kPage - 1) / kPage;
    return (pages + most - 1) / most * kPage;
  }
  /// Into how many chunks the context of a row before `split` falls.
  SLUICE_BOTH int chunks_of(int length) const {
    const int rows = chunk_rows(length, chunks);
    return (length - first_page(length) + rows - 1) / rows;
  }
  /// The length by which the context of a row before `split` is cut: of rows together, their tile's first
  /// one's, so that all of them see some of each chunk.
  __device__ __forceinline__ int cut_length(int row) const {
    return step.positions[together ? row / tile_rows() * tile_rows() : row] + 1;
  }
  /// A head's sink as a power of two.
  __device__ __forceinline__ float sink(int head) const { return __ldg(sinks + head) * 1.44269504f; }
  /// Numbers of a cache row before the group's keys or values.
  SLUICE_BOTH int first_column(int group, bool values) const {
    return (group + (values ? groups : 0)) * q.columns;
  }
  /// Four columns of a head's result.
  __device__ __forceinline__ float4 gated(int row, int head, int column, float4 value) const {
    if (gate.data == nullptr) return value;
    const float4 by = __ldcg(reinterpret_cast<const float4*>(gate(row, head) + column));
    return {value.x / (1.0f + expf(-by.x)), value.y / (1.0f + expf(-by.y)), value.z / (1.0f + expf(-by.z)),
            value.w / (1.0f + expf(-by.w))};
  }
  __device__ __forceinline__ const char* page(int row, int number) const {
    const int sequence = step.sequences[row];
    const int64_t index = step.page_tables[sequence * int64_t{step.header->pages_per_sequence} + number];
    return cache.row(layer, index * program::kPageRows);
  }
};

/// Whether row r goes on where the row before it ends.
__device__ __forceinline__ bool goes_on(const StepView& step, int r) {
  return r > 0 && step.sequences[r] == step.sequences[r - 1] &&
         step.positions[r] == step.positions[r - 1] + 1;
}

/// Whether the row is of a stretch of fewer than kStretch rows.
__device__ inline bool attends_alone(const StepView& step, int row, int rows) {
  int count = 1;
  for (int r = row; count < kStretch && goes_on(step, r); --r) ++count;
  for (int r = row + 1; count < kStretch && r < rows && goes_on(step, r); ++r) ++count;
  return count < kStretch;
}

/// The end of the stretch that row `first` is of, or `end` where that comes before. A warp asks together.
__device__ inline int stretch_end(const StepView& step, int first, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int at = first + 1;; at += 32) {
    const int r = at + lane;
    const unsigned others = ~__ballot_sync(kWholeWarp, r < end && goes_on(step, r));
    if (others != 0) return at + __ffs(static_cast<int>(others)) - 1;
  }
}

/// Rows [first, end) of a stretch, a tile, over positions [begin, until) of their context.
struct AttendTile {
  int first, end, position;        ///< position: of the first row
  int heads;                       ///< of the group
  int begin = 0, until = INT_MAX;  ///< whole pages

  __device__ __forceinline__ int queries() const { return (end - first) * heads; }
  /// Of a query of the tile, or the last one: its row, its head within the group, positions from `begin` on
  /// that it sees.
  __device__ __forceinline__ int query(int i) const { return min(i, queries() - 1); }
  __device__ __forceinline__ int row(int i) const { return first + query(i) / heads; }
  __device__ __forceinline__ int head(int i) const { return query(i) % heads; }
  __device__ __forceinline__ int limit(int i) const {
    return min(position + query(i) / heads + 1, until) - begin;
  }
  __device__ __forceinline__ int longest() const { return min(position + end - first, until) - begin; }
};

/// Rows [from, end) together over chunk `number` of their context; empty where it has fewer.
__device__ inline AttendTile chunk_tile(const AttendArgs& p, int from, int end, int number) {
  if (from >= end) return {end, end, 0, p.heads_a_group};
  const int position = p.step.positions[from], length = position + 1;
  const int rows = p.chunk_rows(length, p.chunks), chunks = p.chunks_of(length);
  const int begin = p.first_page(length) + number * rows;
  return {number < chunks ? from : end,
          end,
          position,
          p.heads_a_group,
          begin,
          number + 1 < chunks ? begin + rows : INT_MAX};
}

/// The next tile of rows [from, end); none: it is empty. All threads of a warp ask. Rows together have one a
/// chunk.
__device__ inline AttendTile next_tile(const AttendArgs& p, int from, int end, int rows) {
  while (from < end && !p.together) {
    const int until = stretch_end(p.step, from, end), position = p.step.positions[from];
    if (until - from >= kStretch || !attends_alone(p.step, from, rows))
      return {from, until, position, p.heads_a_group, p.first_page(position + 1)};
    from = until;
  }
  return {end, end, 0, p.heads_a_group};
}

/// A warp's 16 queries as operands: halves under a power of two each, that keeps them far from the ends of
/// their range; with kRest the halves of what these leave, so that scores of hundreds stay right.
template <int kColumns, bool kRest>
struct QueryOperands {
  static constexpr int kSteps = kColumns / 16;
  uint32_t first[kSteps][4], rest[kRest ? kSteps : 1][4];
  float unscale[2];  ///< of rows g and g + 8, g = lane / 4

  /// Of the numbers at from[0] (row g) and from[1] (row g + 8), in global or in shared memory; null: zeroes.
  template <bool kShared = false>
  __device__ __forceinline__ void load(const float* const (&from)[2]) {
    const int t = threadIdx.x % 4;
    float2 v[kSteps][4];
    float largest[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto* const at = reinterpret_cast<const float2*>(from[k % 2]) + s * 8 + k / 2 * 4 + t;
        v[s][k] = from[k % 2] == nullptr ? float2{0, 0} : kShared ? *at : __ldcg(at);
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        largest[k % 2] = fmaxf(largest[k % 2], fmaxf(fabsf(v[s][k].x), fabsf(v[s][k].y)));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unscale[h] = query_unscale(lane_max(largest[h], 4));
      const float scale = query_scale(unscale[h]);
      const bool none =
          kRest && __all_sync(kWholeWarp, from[h] == nullptr);  // groups of eight heads: half of the work
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int k = h; k < 4; k += 2) {
          if (none) {
            first[s][k] = 0;
            if (kRest) rest[s][k] = 0;
            continue;
          }
          const float2 w{v[s][k].x * scale, v[s][k].y * scale};
          const __half2 half = __floats2half2_rn(w.x, w.y);
          first[s][k] = *reinterpret_cast<const uint32_t*>(&half);
          if (kRest) rest[s][k] = pack_halves(w.x - __low2float(half), w.y - __high2float(half));
        }
      }
    }
  }
};

/// Rows of kColumns halves in shared memory, so that eight rows' units of 16 bytes fall on different banks.
template <int kColumns>
struct HalfRows {
  static constexpr bool kSwizzled = kColumns % 64 == 0;
  static constexpr int kUnits = kColumns / 8, kPitch = kColumns * 2 + (kSwizzled ? 0 : 16);

  static __device__ __forceinline__ int unit(int row, int u) {
    return row * kPitch + (kSwizzled ? u ^ (row & 7) : u) * 16;
  }
};

/// Keys or values of a group in eight bits: where they and their scales lie in a cache row, bytes.
struct CodedColumns {
  int codes, scales;

  __device__ __forceinline__ CodedColumns(const AttendArgs& p, int group, bool values)
      : codes(p.first_column(group, values)), scales(p.cache.scales_at + codes / kCacheRun * 2) {}
};

/// 16, 8 or 4 bytes from global to shared memory, or zeroes.
template <int kBytes>
__device__ __forceinline__ void copy_or_zero_async(uint32_t to, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 8);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
               "r"(there ? kBytes : 0)
               : "memory");
}

/// `kRows` rows in eight bits in shared memory: codes of keys, codes of values, the scales of both.
template <int kColumns>
struct CodedRows {
  static constexpr int kScaleBytes = kColumns / kCacheRun * 2, kScalesAt = 2 * kColumns,
                       kPitch = kScalesAt + (2 * kScaleBytes + 15) / 16 * 16;

  /// Brings the first `count` rows of kRows, the others as zeroes; kThreads together.
  template <int kRows, int kThreads>
  static __device__ __forceinline__ void bring(uint32_t to, const char* rows, int64_t row_bytes, int count,
                                               const AttendArgs& p, int group, int thread) {
    const CodedColumns keys(p, group, false), values(p, group, true);
    constexpr int kUnits = 2 * kColumns / 16;
#pragma unroll
    for (int i = thread; i < kRows * kUnits; i += kThreads) {
      const int row = i / kUnits, unit = i % kUnits;
      const bool there = row < count;
      const int column = unit < kUnits / 2 ? keys.codes + unit * 16 : values.codes + (unit - kUnits / 2) * 16;
      copy_async(to + row * kPitch + unit * 16, rows + (there ? row : 0) * row_bytes + column, there);
    }
#pragma unroll
    for (int i = thread; i < kRows * 2; i += kThreads) {
      const int row = i / 2;
      const bool there = row < count;
      copy_or_zero_async<kScaleBytes>(
          to + row * kPitch + kScalesAt + i % 2 * kScaleBytes,
          rows + (there ? row : 0) * row_bytes + (i % 2 ? values.scales : keys.scales), there);
    }
  }

  /// Makes halves of kRows rows.
  template <int kRows, int kThreads>
  static __device__ __forceinline__ void decode(const char* rows, char* keys, char* values, int thread) {
    constexpr int kUnits = 2 * kColumns / 16;
#pragma unroll 2
    for (int i = thread; i < kRows * kUnits; i += kThreads) {
      const int row = i / kUnits, unit = i % kUnits, mine = unit % (kUnits / 2);
      const char* const from = rows + row * kPitch;
      const auto* const scales = reinterpret_cast<const __half*>(from + kScalesAt);
      const SixteenHalves numbers =
          halves_of_codes(*reinterpret_cast<const uint4*>(from + unit * 16), scales[unit / 2]);
      char* const to = unit < kUnits / 2 ? keys : values;
      *reinterpret_cast<uint4*>(to + HalfRows<kColumns>::unit(row, 2 * mine)) = numbers.low;
      *reinterpret_cast<uint4*>(to + HalfRows<kColumns>::unit(row, 2 * mine + 1)) = numbers.high;
    }
  }
};

/// Brings keys and values of `count` rows of binary16, of kRows, the others as zeroes; kThreads together.
template <int kColumns, int kRows, int kThreads>
__device__ __forceinline__ void bring_halves(uint32_t keys, uint32_t values, const char* rows,
                                             int64_t row_bytes, int count, const AttendArgs& p, int group,
                                             int thread) {
  using Halves = HalfRows<kColumns>;
  const int key = p.first_column(group, false) * 2, value = p.first_column(group, true) * 2;
#pragma unroll
  for (int i = thread; i < kRows * Halves::kUnits; i += kThreads) {
    const int row = i / Halves::kUnits, unit = i % Halves::kUnits;
    const bool there = row < count;
    const char* const from = rows + (there ? row : 0) * row_bytes + unit * 16;
    const int to = Halves::unit(row, unit);
    copy_async(keys + to, from + key, there);
    copy_async(values + to, from + value, there);
  }
}

/// The results of the tile's queries `mine` and mine + 8.
template <int kColumns, int kKeys>
__device__ __forceinline__ void store_rows(const AttendArgs& p, const AttendTile& tile, int group, int mine,
                                           const TwoRows<kKeys, kColumns>& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = 1.0f / lane_sum(rows.all[h], 4);
    const int i = mine + 8 * h;
    if (i >= tile.queries()) continue;
    float* const to = p.out(tile.row(i), group * p.heads_a_group + tile.head(i)) + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n) = {rows.sum[n][2 * h] * inverse,
                                                rows.sum[n][2 * h + 1] * inverse};
    }
  }
}

/// Of rows together: the chunk's part of the results, and what it has to be weighed with.
template <int kColumns, int kKeys>
__device__ __forceinline__ void store_parts(const AttendArgs& p, const AttendTile& tile, int group, int mine,
                                            int chunk, const TwoRows<kKeys, kColumns>& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float all = lane_sum(rows.all[h], 4);
    const int i = mine + 8 * h, t = threadIdx.x % 4;
    if (i >= tile.queries()) continue;
    const int64_t part =
        (int64_t{tile.row(i)} * p.chunks + chunk) * p.q.heads + group * p.heads_a_group + tile.head(i);
    if (t == 0) p.weights[part] = {rows.largest[h] * rows.factor[h], all};
    float* const to = p.parts + part * kColumns + 2 * t;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = {rows.sum[n][2 * h], rows.sum[n][2 * h + 1]};
  }
}

void gqa_split_kv(const AttendArgs& args, const Context& context);
/// Puts chunks of all rows together.
void join_split_kv(const AttendArgs& args, const Context& context);
/// Of rows whose heads nobody has made ready: at most kMadeRows, of 64 or 128 columns.
void gqa_split_kv(const AttendArgs& args, const GqaQueryArgs& heads, const Context& context);
/// Its heads (attention/gqa_query.cu).
GqaQueryArgs gqa_query_args(const program::Program& program, const program::GqaQuery& op,
                            const Memory& memory);
/// Heads of queries to `queries`, and keys and values into the cache (attention/gqa_query.cu).
void make_heads(const GqaQueryArgs& heads, const Rows<float>& queries, const Cache& cache, int layer,
                const Context& context);
/// Rows together in chunks, which somebody else joins.
void attend_tiles(const AttendArgs& args, const Context& context);
/// The same by wgmma, of 64 or 128 columns without sinks and windows (sm_90a).
void attend_wgmma(const AttendArgs& args, const Context& context);

}  // namespace sluice::backend::cuda
