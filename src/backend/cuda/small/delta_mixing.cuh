// The first launch of delta_rule in chunks (delta_rule_chunked.cu says what is computed): T and A of all
// chunks side by side, and with a decay a channel scaled rows. Above it stands what both launches know.
#pragma once

#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mma_float32.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/small/delta_rule.cuh"

namespace sluice::backend::cuda::chunked {

using program::DeltaRule;

inline constexpr int kChunk = 32, kTiles = kChunk / 8;  ///< rows; tiles of a product's side
inline constexpr int kHalf = 16;                        ///< of a chunk, where channels have decays
inline constexpr int kWarps = 4;

/// What the first launch leaves of a row and head for the second.
struct alignas(16) Mixing {
  float t[kChunk], a[kChunk];  ///< the row of T and of A
  float by_key, by_query;      ///< what its products with the state are multiplied by
  float by_change;             ///< and its change of the state
  float decay;                 ///< from the chunk's begin on, its own included
  float unused[4];             ///< rows are 8 banks apart: of 4 rows, pairs of columns are read at a time
};

struct ChunkArgs : DeltaArgs {
  Mixing* mixing;  ///< [heads][step_rows]
  int step_rows;
  /// By channel, of rows and heads: keys and queries times the decays from the chunk's begin on, keys times
  /// those behind the row, and at a chunk's last row all its decays.
  Rows<float> k_since, q_since, k_left, decays;

  __device__ __forceinline__ int key_head(int head) const {
    return in_turns ? head % k.heads : head / (v.heads / k.heads);
  }
  __device__ __forceinline__ Mixing* mixing_of(int head, int row) const {
    return mixing + int64_t{head} * step_rows + row;
  }
};

/// Where a column of a chunk's row lies: so that both pairs of columns of 4 rows and 8 columns of every
/// second row are in 32 banks.
template <int kKeys>
__device__ __forceinline__ int place(int row, int column) {
  return row * kKeys + (column ^ ((row & 2) << 3 | ((row ^ row >> 2) & 1) << 3));
}

/// Asks for a chunk's rows of a head; from `count` on they are zero.
template <int kKeys>
__device__ __forceinline__ void copy_rows(const Rows<float>& from, int head, int first, int count,
                                          float* to) {
  constexpr int kFours = kKeys / 4, kTurn = 32 * kWarps / kFours;  // rows that all threads ask for at once
  static_assert(kTurn == 4 || kTurn == 8);
  const int row = static_cast<int>(threadIdx.x) / kFours, c = static_cast<int>(threadIdx.x) % kFours * 4;
  const float* at = from(first + row, head) + c;
  // Where a row lies depends on its number by 8.
  const uint32_t even = shared_address(to + place<kKeys>(row, c));
  const uint32_t odd = shared_address(to + place<kKeys>(row + kTurn, c)) - kTurn * kKeys * 4;
#pragma unroll
  for (int i = 0; i < kChunk / kTurn; ++i, at += kTurn * from.row_stride)
    copy_async((i % 2 == 0 ? even : odd) + i * kTurn * kKeys * 4, at, row + i * kTurn < count);
}

/// The end of the chunk that begins at a row of a run.
__device__ __forceinline__ int chunk_end(const StepView& step, const Run& run, int first) {
  const int position = __ldg(step.positions + run.first) + first - run.first;
  return min(run.end, first + kChunk - position % kChunk);
}

__device__ __forceinline__ float2 pair_at(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ __forceinline__ float4 four_at(const float* at) { return *reinterpret_cast<const float4*>(at); }

/// Of a tile of accumulators, 16 x 8, a lane has number e here.
__device__ __forceinline__ int row_in_tile(int lane, int e) { return lane / 4 + e / 2 * 8; }
__device__ __forceinline__ int column_in_tile(int lane, int e) { return lane % 4 * 2 + e % 2; }

/// Such a tile as an operand.
struct Operand {
  Halved of[4];
  __device__ __forceinline__ explicit Operand(const float (&d)[4])
      : of{Halved(d[0]), Halved(d[2]), Halved(d[1]), Halved(d[3])} {}
};

/// And as what is added up.
struct Tile {
  float of[4] = {}, rest[4] = {};

  __device__ __forceinline__ void add(const Operand& a, float2 b) {
    mma_float32(of, rest, a.of, Halved::cut(b.x), Halved::cut(b.y));
  }
  __device__ __forceinline__ float operator[](int e) const { return of[e] + rest[e]; }
};

// --- T and A of all chunks ---

inline constexpr int kRowsEach = 8;   ///< of a step: a block takes the chunks that begin there
inline constexpr int kProducts = 40;  ///< columns of the products' rows, 8 banks apart

template <int kKeys, bool kByChannel>
struct Products {
  static_assert(2 * kKeys >= kWarps * kChunk);
  alignas(16) float rows[2 * kChunk * kKeys];  ///< keys, queries; afterwards each warp's L
  float of[2 * kChunk][kProducts];             ///< K K^T, Q K^T: up to the diagonal's tiles
  float by[2][kChunk];                         ///< 1 over the length of keys, of queries
  alignas(16) float decays[kByChannel ? kChunk * kKeys : 1];
};

/// One over the lengths: a warp's rows are 8 of the keys and of the queries.
template <int kKeys, bool kByChannel>
__device__ __forceinline__ void measure(Products<kKeys, kByChannel>& p, int warp, int lane) {
  float squares[16] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    // All columns: any order is right.
    const float* row = p.rows + (i / 8 * kChunk + warp * 8 + i % 8) * kKeys;
#pragma unroll
    for (int c = 0; c < kKeys / 32; ++c) squares[i] += row[32 * c + lane] * row[32 * c + lane];
  }
  const float root = sqrtf(lane_sums<16>(squares) + static_cast<float>(DeltaRule::kEpsilon));
  const int i = lane / 2;
  if (lane % 2 == 0)
    p.by[i / 8][warp * 8 + i % 8] = 1.0f / (i < 8 ? root : root * sqrtf(static_cast<float>(kKeys)));
}

/// 16 rows of the products, of them so many tiles.
template <int kKeys, bool kByChannel>
__device__ __forceinline__ void multiply(Products<kKeys, kByChannel>& p, int first, int tiles, int lane) {
  const int g = lane / 4, t = lane % 4;
  Tile sums[kTiles];
#pragma unroll 4
  for (int c = 2 * t; c < kKeys; c += 8) {
    const float2 upper = pair_at(p.rows + place<kKeys>(first + g, c));
    const float2 lower = pair_at(p.rows + place<kKeys>(first + g + 8, c));
    const Operand a({upper.x, upper.y, lower.x, lower.y});
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      if (j < tiles) sums[j].add(a, pair_at(p.rows + place<kKeys>(8 * j + g, c)));
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if (kByChannel && j >= tiles) break;  // there are those of multiply_near
#pragma unroll
    for (int e = 0; e < 4; ++e)
      p.of[first + row_in_tile(lane, e)][8 * j + column_in_tile(lane, e)] = sums[j][e];
  }
}

/// Asks for the decays of a head's rows; from `count` on they are 1.
template <int kKeys>
__device__ __forceinline__ void load_decays(const ChunkArgs& a, int head, int first, int count,
                                            Products<kKeys, true>& p) {
  const int c = static_cast<int>(threadIdx.x);
  if (c >= kKeys) return;
  const int at = head * kKeys + c;
  const float rate = fminf(__ldg(a.rate + head), 0.0f), bias = __ldg(a.bias + at);
  const float* from = a.decay(first, at / a.decay.columns) + at % a.decay.columns;
#pragma unroll 8
  for (int i = 0; i < kChunk; ++i, from += a.decay.row_stride)
    p.decays[i * kKeys + c] = i < count ? expf(rate * softplus(__ldcg(from) + bias)) : 1.0f;
}

/// Goes on by 4 rows with a key `seen` by row j, of which a lane has every 32nd four of columns, and leaves
/// its products with these rows. kOwn: row j may be among them.
template <int kKeys, bool kOwn>
__device__ __forceinline__ void multiply_four(Products<kKeys, true>& p, int first, int j, int lane,
                                              float (&seen)[kKeys / 32][4]) {
  float sums[8] = {};  // of four keys, of four queries
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int n = 0; n < kKeys / 32; ++n) {
      const int c = 32 * n + lane % 8 * 4, at = place<kKeys>(first + r, c);
      const float4 k4 = four_at(p.rows + at), q4 = four_at(p.rows + kChunk * kKeys + at);
      const float4 d4 = four_at(p.decays + (first + r) * kKeys + c);
      const float k[4] = {k4.x, k4.y, k4.z, k4.w}, q[4] = {q4.x, q4.y, q4.z, q4.w};
      const float d[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        seen[n][e] = kOwn && first + r == j ? k[e] : d[e] * seen[n][e];
        sums[r] += k[e] * seen[n][e], sums[4 + r] += q[e] * seen[n][e];
      }
    }
  }
  p.of[lane % 8 / 4 * kChunk + first + lane % 4][j] = lane_sums<8, 4>(sums);
}

/// Products of rows of the same half: 8 lanes have a key, and how each row behind it sees it.
template <int kKeys>
__device__ __forceinline__ void multiply_near(Products<kKeys, true>& p, int warp, int lane) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int begin = half * kHalf + 4 * (half == 0 ? warp : kWarps - 1 - warp), j = begin + lane / 8;
    float seen[kKeys / 32][4] = {};
    multiply_four<kKeys, true>(p, begin, j, lane, seen);
#pragma unroll 1
    for (int i = begin + 4; i < (half + 1) * kHalf; i += 4) multiply_four<kKeys, false>(p, i, j, lane, seen);
  }
}

/// Leaves a head's scaled rows, a thread a column. Here stay, for the products of both halves, keys of the
/// first times the decays behind them in it, and rows of the second times those in it from its begin on.
template <int kKeys>
__device__ __forceinline__ void scale_rows(const ChunkArgs& a, int head, int first, int count,
                                           Products<kKeys, true>& p) {
  const int c = static_cast<int>(threadIdx.x);
  if (c >= kKeys) return;
  const int64_t stride = a.k_since.row_stride;
  float *k_since = a.k_since(first, head) + c, *q_since = a.q_since(first, head) + c;
  float k[kChunk], since = 1, before = 1;  // decays from the half's begin on; of the half before
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i == kHalf) before = since, since = 1;
    since *= p.decays[i * kKeys + c];
    float &key = p.rows[place<kKeys>(i, c)], &query = p.rows[place<kKeys>(kChunk + i, c)];
    k[i] = key;
    const float of_key = k[i] * since, of_query = query * since;
    if (i >= kHalf) key = of_key, query = of_query;
    if (i < count) *k_since = of_key * before, *q_since = of_query * before;
    k_since += stride, q_since += stride;
  }
  a.decays(first + count - 1, head)[c] = since * before;
  float behind = 1, *k_left = a.k_left(first, head) + c + kChunk * stride;  // behind: the row in its half
#pragma unroll
  for (int i = kChunk - 1; i >= 0; --i) {
    if (i == kHalf - 1) behind = 1;
    const float left = k[i] * behind;
    if (i < kHalf) p.rows[place<kKeys>(i, c)] = left;
    k_left -= stride;
    if (i < count) *k_left = i < kHalf ? left * since : left;
    behind *= p.decays[i * kKeys + c];
  }
}

/// A head's T and A, by one warp: a lane has a column. `l` is the warp's own.
template <int kKeys, bool kByChannel>
__device__ __forceinline__ void solve(const ChunkArgs& a, const Products<kKeys, kByChannel>& p, int head,
                                      int first, int count, int lane, float* l) {
  float decay = 1, beta = 0;  // of row `lane`; by channel decays are in the products
  if (lane < count) {
    if constexpr (!kByChannel) {
      const float rate = fminf(__ldg(a.rate + head), 0.0f);
      decay = expf(rate * softplus(number_of(a.decay, first + lane, head) + __ldg(a.bias + head)));
    }
    beta = 1.0f / (1.0f + expf(-number_of(a.beta, first + lane, head)));
  }
  const float by_key = p.by[0][lane], by_query = p.by[1][lane];
  Mixing* const to = a.mixing_of(head, first);
  float between = 0, until = 1,
        all = 1;  // decays: of rows behind row `lane` through i, of those to it, of all
#pragma unroll 4
  for (int i = 0; i < kChunk; ++i) {
    const float of_row = __shfl_sync(kWholeWarp, decay, i);
    all *= of_row;
    between = lane == i ? 1.0f : between * of_row;
    until = lane == i ? all : until;
    const float by = by_key * between;
    const float changes = __shfl_sync(kWholeWarp, beta * by_key, i) * by * p.of[i][lane];
    const float gives = __shfl_sync(kWholeWarp, by_query, i) * by * p.of[kChunk + i][lane];
    l[i * kChunk + lane] = lane < i ? changes : 0.0f;
    if (i < count) to[i].a[lane] = lane <= i ? gives : 0.0f;
  }
  if (lane < count) {
    to[lane].by_key = until * by_key, to[lane].by_query = until * by_query;
    to[lane].by_change = between * by_key, to[lane].decay = until;
  }
  __syncwarp();
  float t[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    t[i] = lane == i ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k < i; k += 4) {
      const float4 four = *reinterpret_cast<const float4*>(l + i * kChunk + k);
      const float of_k[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4 && k + e < i; ++e) t[i] -= of_k[e] * t[k + e];
    }
    if (i < count) to[i].t[lane] = t[i] * beta;
  }
}

/// By channel there are more than a kernel may declare.
template <int kKeys, bool kByChannel>
__device__ __forceinline__ Products<kKeys, kByChannel>& products() {
  if constexpr (kByChannel) {
    extern __shared__ char memory[];
    return *reinterpret_cast<Products<kKeys, kByChannel>*>(memory);
  } else {
    __shared__ Products<kKeys, kByChannel> declared;
    return declared;
  }
}

template <int kKeys, bool kByChannel>
__global__ void __launch_bounds__(32 * kWarps)
    delta_mixing(const Timestamps timestamps, StepView step, const __grid_constant__ ChunkArgs a) {
  auto& p = products<kKeys, kByChannel>();
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int each = kByChannel ? 1 : a.v.heads / a.k.heads;  // heads of a block, all of them of one key head
  const int begin = static_cast<int>(blockIdx.x) * kRowsEach, y = static_cast<int>(blockIdx.y);
  const int key_head = kByChannel ? a.key_head(y) : y;
  pdl.wait();
  for (int first = begin; first < min(begin + kRowsEach, step.header->rows); ++first) {
    const Run run = step.runs[__ldg(step.run_of + first)];
    if (first != run.first && __ldg(step.positions + first) % kChunk != 0) continue;
    const int count = chunk_end(step, run, first) - first;
    copy_rows<kKeys>(a.k, key_head, first, count, p.rows);
    copy_rows<kKeys>(a.q, key_head, first, count, p.rows + kChunk * kKeys);
    commit_copies();
    if constexpr (kByChannel) load_decays(a, y, first, count, p);
    wait_copies<0>();
    __syncthreads();
    measure(p, warp, lane);
    if constexpr (kByChannel) {
      multiply_near(p, warp, lane);
      __syncthreads();
      scale_rows(a, y, first, count, p);
      __syncthreads();
      if (warp % 2 == 1) multiply(p, warp * 16, kHalf / 8, lane);
    } else {
      multiply(p, warp * 16, warp % 2 * 2 + 2, lane);
    }
    __syncthreads();
    for (int n = warp; n < each; n += kWarps)
      solve(a, p,
            kByChannel   ? y
            : a.in_turns ? n * a.k.heads + key_head
                         : key_head * each + n,
            first, count, lane, p.rows + warp * kChunk * kChunk);
    __syncthreads();
  }
}

}  // namespace sluice::backend::cuda::chunked
