// What a thread block of gqa_split_kv.cu has: its work, the pieces of keys and values that its warps bring,
// and its heads, which lie ready or are products yet.
#pragma once

#include "backend/cuda/attention/gqa.cuh"
#include "backend/cuda/attention/gqa_query.cuh"
#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda::split_kv {

using program::kPageRows;

inline constexpr int kWarps = 4, kThreads = 32 * kWarps, kPiece = kPageRows / kWarps;
static_assert(kPiece == 16, "positions of a matrix instruction");

/// What the warps have in shared memory at the end of a chunk.
template <int kColumns>
struct Sums {
  static constexpr int kPitch = kColumns + 8;  ///< eight rows' pairs lie on different banks
  float of_warp[kWarps][kGroupQueries][kPitch];
};

template <int kColumns, bool kCoded>
struct Shape {
  using Halves = HalfRows<kColumns>;
  using Codes = CodedRows<kColumns>;
  static constexpr int kStages = kColumns > 128 ? 2 : 3;      ///< pieces of a warp in shared memory
  static constexpr int kHalfBytes = kPiece * Halves::kPitch;  ///< of a piece's keys, or values
  static constexpr int kStageBytes = kCoded ? kPiece * Codes::kPitch : 2 * kHalfBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes + (kCoded ? 2 * kHalfBytes : 0);
  static constexpr int kSharedBytes = std::max(kWarps * kWarpBytes, static_cast<int>(sizeof(Sums<kColumns>)));
};

/// A group of a row, and the positions that its queries meet.
struct Work {
  int row, group, chunk, begin, end, length;
  bool alone;  ///< all that the row sees
};

__device__ __forceinline__ Work work_of(const AttendArgs& p, int row, int group, int chunk) {
  Work w;
  w.chunk = chunk, w.group = group, w.row = row;
  w.length = p.step.positions[w.row] + 1;
  const int first = p.first_page(w.length),
            positions = p.chunk_rows(w.length, w.row < p.split ? p.chunks : 1);
  w.begin = first + w.chunk * positions, w.end = min(w.begin + positions, w.length);
  w.alone = w.begin == first && w.end == w.length;
  return w;
}

/// A warp's pieces, one of every page.
template <int kColumns, bool kCoded>
struct Pieces {
  using S = Shape<kColumns, kCoded>;
  const AttendArgs& p;
  const Work& work;
  char* shared;  ///< the warp's
  int first;     ///< the first page's piece
  int count, brought = 0;
  int settled;  ///< positions that earlier steps have left
  int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t pages = 0;  ///< this lane's page of 32

  __device__ __forceinline__ Pieces(const AttendArgs& args, const Work& w, char* of_warp, int warp)
      : p(args),
        work(w),
        shared(of_warp),
        first(w.begin + warp * kPiece),
        count(first < w.end ? (w.end - first + kPageRows - 1) / kPageRows : 0),
        settled(w.length - p.step.header->rows) {}

  /// Whether there is a next piece that earlier steps have left.
  __device__ __forceinline__ bool next_settled() const {
    return brought < count && first + brought * kPageRows + kPiece <= settled;
  }
  __device__ __forceinline__ void bring() {
    if (brought < count) {
      if (brought % 32 == 0) {
        const int page = work.begin / kPageRows + brought + lane, last = (work.length - 1) / kPageRows;
        pages = reinterpret_cast<int64_t>(p.page(work.row, min(page, last)));
      }
      const int from = first + brought * kPageRows;
      const auto* const page = reinterpret_cast<const char*>(__shfl_sync(kWholeWarp, pages, brought % 32));
      const char* const rows = page + int64_t{from % kPageRows} * p.cache.row_bytes;
      const uint32_t to = shared_address(shared) + brought % S::kStages * S::kStageBytes;
      const int there = work.end - from;
      if constexpr (kCoded) {
        S::Codes::template bring<kPiece, 32>(to, rows, p.cache.row_bytes, there, p, work.group, lane);
      } else {
        bring_halves<kColumns, kPiece, 32>(to, to + S::kHalfBytes, rows, p.cache.row_bytes, there, p,
                                           work.group, lane);
      }
      ++brought;
    }
    commit_copies();
  }
  /// Piece i's keys and values as halves, once it is there; the warp's.
  __device__ __forceinline__ uint32_t halves(int i) {
    wait_copies<S::kStages - 2>();
    __syncwarp();
    char* const stage = shared + i % S::kStages * S::kStageBytes;
    if constexpr (kCoded) {
      char* const keys = shared + S::kStages * S::kStageBytes;
      S::Codes::template decode<kPiece, 32>(stage, keys, keys + S::kHalfBytes, lane);
      __syncwarp();
      return shared_address(keys);
    }
    return shared_address(stage);
  }
};

struct NoProducts {};

/// Heads that lie ready, and their keys and values in the cache.
template <int kColumns, bool kCoded>
struct ReadyHeads {
  using Args = NoProducts;
  static constexpr bool kMakes = false;
  const AttendArgs& p;
  const Work& work;

  __device__ __forceinline__ ReadyHeads(const AttendArgs& args, const Args&, const Work& w)
      : p(args), work(w) {}
  __device__ __forceinline__ void load(QueryOperands<kColumns, true>& query) const {
    const auto place = [&](int i) -> const float* {
      return i < p.heads_a_group ? p.q(work.row, work.group * p.heads_a_group + i) : nullptr;
    };
    const int g = threadIdx.x % 32 / 4;
    query.load({place(g), place(g + 8)});
  }
  __device__ __forceinline__ void put(int, uint32_t) const {}
};

/// Heads that are products yet: the block makes its group's queries, and a warp those rows of the step that
/// its pieces have, as the cache gives them back. Its own row enters the cache here.
template <int kColumns, bool kCoded>
struct MadeHeads {
  using Args = GqaQueryArgs;
  using S = Shape<kColumns, kCoded>;
  using Halves = HalfRows<kColumns>;
  static constexpr bool kMakes = true, kBiased = kColumns <= kMostBiased;
  static constexpr int kEach = kColumns / 32, kHeads = kGroupQueries / kWarps;
  static constexpr int kScratch = 3 * kColumns;  ///< numbers of a warp's heads
  static_assert(2 * kScratch * 4 <= S::kStageBytes && kGroupQueries * Halves::kPitch <= S::kStageBytes);
  const AttendArgs& p;
  const GqaQueryArgs& h;
  const Work& work;
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  HeadAngles<kEach / 2> angles;
  HeadNumbers<kEach> q_norm, k_norm, q_bias[kHeads], k_bias, v_bias;
  int64_t slot;
  int position;  ///< of the step's row `lane`, if the warp makes it; otherwise -1

  /// Before the kernels before this one have ended.
  __device__ __forceinline__ MadeHeads(const AttendArgs& args, const GqaQueryArgs& heads, const Work& w)
      : p(args), h(heads), work(w), angles(heads, w.length - 1, lane), slot(args.step.slots[w.row]) {
    q_norm.ask_weight(h.q_norm, kColumns, lane), k_norm.ask_weight(h.k_norm, kColumns, lane);
    if constexpr (kBiased) {
      k_bias.ask_bias(h.k_bias, work.group, kColumns, lane);
      v_bias.ask_bias(h.v_bias, work.group, kColumns, lane);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const int head = i * kWarps + warp;
        if (head < p.heads_a_group)
          q_bias[i].ask_bias(h.q_bias, work.group * p.heads_a_group + head, kColumns, lane);
      }
    }
    position = -1;
    const StepView& step = p.step;
    if (lane >= step.header->rows || step.sequences[lane] != step.sequences[work.row]) return;
    const int at = step.positions[lane];
    if (at >= work.begin && at < work.end && at % kPageRows / kPiece == warp) position = at;
  }

  /// Keys and values of the step's rows.
  static __device__ __forceinline__ __half* made_row(int row) {
    __shared__ __align__(16) __half rows[kMadeRows][2 * kColumns];
    return rows[row];
  }
  /// What warp i's piece that comes last has before it comes: the queries as halves, what these leave, and
  /// two warps' scratch each.
  static __device__ __forceinline__ char* last_piece(int i) {
    extern __shared__ __align__(128) char attend_shared[];
    return attend_shared + i * S::kWarpBytes + (S::kStages - 1) * S::kStageBytes;
  }
  __device__ __forceinline__ float* scratch(int i) const {
    return reinterpret_cast<float*>(last_piece(2 + warp / 2)) + warp % 2 * kScratch + i * kColumns;
  }
  static __device__ __forceinline__ float* unscales() {
    __shared__ float of[kGroupQueries];
    return of;
  }

  __device__ __forceinline__ void load(QueryOperands<kColumns, true>& query) const {
    make();
    __syncthreads();
    const uint32_t halves = shared_address(last_piece(0)), rests = shared_address(last_piece(1));
    const bool many = p.heads_a_group > 8;
#pragma unroll
    for (int s = 0; s < kColumns / 16; ++s) {
      const int at = Halves::unit(lane / 8 % 2 * 8 + lane % 8, 2 * s + lane / 16);
      load_matrices(query.first[s], halves + at), load_matrices(query.rest[s], rests + at);
      if (many) continue;
      query.first[s][1] = query.first[s][3] = query.rest[s][1] = query.rest[s][3] = 0;
    }
    query.unscale[0] = unscales()[lane / 4], query.unscale[1] = many ? unscales()[lane / 4 + 8] : 1.0f;
    __syncthreads();  // pieces come where the queries are
  }
  /// Leaves query i of the group for all warps, as QueryOperands has it.
  __device__ __forceinline__ void put_query(int i, const HeadNumbers<kEach>& x) const {
    float largest = 0;
#pragma unroll
    for (const float v : x.of) largest = fmaxf(largest, fabsf(v));
    const float unscale = query_unscale(lane_max(largest)), scale = query_scale(unscale);
    if (lane == 0) unscales()[i] = unscale;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int c = lane + 32 * k, at = Halves::unit(i, c / 8) + c % 8 * 2;
      const float scaled = x.of[k] * scale;
      const __half half = __float2half_rn(scaled);
      *reinterpret_cast<__half*>(last_piece(0) + at) = half;
      *reinterpret_cast<__half*>(last_piece(1) + at) = __float2half_rn(scaled - __half2float(half));
    }
  }
  /// A warp's queries, two at a time, and its rows' keys and values, those of the block's row with the first
  /// queries.
  __device__ __forceinline__ void make() const {
    unsigned rows = __ballot_sync(kWholeWarp, position >= 0);
    int row = (rows >> work.row & 1) != 0 ? work.row : -1;
    HeadNumbers<kEach> k = {}, v = {};
#pragma unroll
    for (int first = 0; first < kHeads; first += 2) {
      if (first * kWarps >= p.heads_a_group) break;
      HeadNumbers<kEach> x[3] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = (first + i) * kWarps + warp;
        if (head >= p.heads_a_group) continue;  // zeroes
        x[i].ask(h.q(work.row, work.group * p.heads_a_group + head), kColumns, lane);
        if constexpr (kBiased) x[i].add(q_bias[first + i]);
      }
      if (first == 0 && row >= 0) ask_row(row, x[2], v);
      const auto is_key = [](int i) { return i == 2; };
      make_ready(h, x, q_norm, k_norm, angles, kColumns, lane, is_key, [&](int i) { return scratch(i); });
#pragma unroll
      for (int i = 0; i < 2; ++i) put_query((first + i) * kWarps + warp, x[i]);
      if (first == 0) k = x[2];
    }
    for (;;) {
      if (row >= 0) leave_row(row, k, v), rows &= ~(1u << row);
      if (rows == 0) break;
      row = __ffs(static_cast<int>(rows)) - 1;
      HeadNumbers<kEach> key[1];
      ask_row(row, key[0], v);
      const HeadAngles<kEach / 2> its(h, __shfl_sync(kWholeWarp, position, row), lane);
      const auto is_key = [](int) { return true; };
      make_ready(h, key, q_norm, k_norm, its, kColumns, lane, is_key, [&](int) { return scratch(0); });
      k = key[0];
    }
  }
  /// A row's key and value of the group.
  __device__ __forceinline__ void ask_row(int row, HeadNumbers<kEach>& k, HeadNumbers<kEach>& v) const {
    k.ask(h.k(row, work.group), kColumns, lane);
    v.ask(h.v(row) + work.group * kColumns, kColumns, lane);
    if constexpr (kBiased) k.add(k_bias), v.add(v_bias);
  }
  /// As the cache gives them back; the block's own row enters it.
  __device__ __forceinline__ void leave_row(int row, const HeadNumbers<kEach>& k,
                                            const HeadNumbers<kEach>& v) const {
    __half* const to = made_row(row);
    char* const cached = row == work.row && slot >= 0 ? p.cache.row(p.layer, slot) : nullptr;
    const int keys = p.first_column(work.group, false), values = p.first_column(work.group, true);
    if constexpr (kCoded) {
      const float* const key = scratch(0);
      const float* const value = scratch(1);
      __syncwarp();
      k.put(scratch(0), kColumns, lane), v.put(scratch(1), kColumns, lane);
      // A loop: code that is run once costs its fetch.
#pragma unroll 1
      for (int c = lane; c < kColumns; c += 32) {
        to[c] = as_cached<true>(key[c]), to[kColumns + c] = as_cached<true>(value[c]);
        if (cached == nullptr) continue;
        put_number(p.cache, cached, keys + c, key[c]), put_number(p.cache, cached, values + c, value[c]);
      }
    } else {
      __half* const exact = cached != nullptr ? exact_columns(p.cache, cached) : nullptr;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = lane + 32 * i;
        const __half made[2] = {as_cached<false>(k.of[i]), as_cached<false>(v.of[i])};
        to[c] = made[0], to[kColumns + c] = made[1];
        if (exact != nullptr) exact[keys + c] = made[0], exact[values + c] = made[1];
      }
    }
    __syncwarp();
  }
  /// Into the warp's piece from position `from` on, whose rows may be in the cache or not.
  __device__ __forceinline__ void put(int from, uint32_t keys) const {
    unsigned rows = __ballot_sync(kWholeWarp, position >= from && position < from + kPiece);
    if (rows == 0) return;
    for (; rows != 0; rows &= rows - 1) {
      const int row = __ffs(static_cast<int>(rows)) - 1;
      const int at = __shfl_sync(kWholeWarp, position, row) - from;
      for (int unit = lane; unit < 2 * Halves::kUnits; unit += 32) {
        const uint32_t to =
            keys + unit / Halves::kUnits * S::kHalfBytes + Halves::unit(at, unit % Halves::kUnits);
        *static_cast<uint4*>(__cvta_shared_to_generic(to)) =
            reinterpret_cast<const uint4*>(made_row(row))[unit];
      }
    }
    __syncwarp();
  }
};

}  // namespace sluice::backend::cuda::split_kv
