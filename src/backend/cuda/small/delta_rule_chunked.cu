// delta_rule of prompts: 32 rows at a time, by products of matrices (Yang et al. 2025, the chunked form of
// the gated delta rule). With K, Q and V a chunk's rows, S the state before it, and g the decay from the
// chunk's begin through a row, what rows change the state by, row j as k_j u_j, and what they give are
//   U = T (V - g K S),  out = g Q S + A U,  S' = g_end S + (g_end / g K)^T U
// A is Q K^T by the decay between both rows, up to the diagonal; T is (1 + L)^-1 beta, where L is
// beta K K^T by that decay, below the diagonal. Only U, out and S' depend on the state. So two launches: one
// makes T and A of all chunks side by side, the other goes from chunk to chunk.
//
// Chunks begin at positions that are multiples of 32, so that a sequence may be cut there without another
// bit. Keys and queries are multiplied as they come: their lengths are factors of rows.
//
// Tensor cores multiply float32 (prim/mma_float32.cuh). Of a product of accumulators, a lane has those of
// columns 2t and 2t + 1 where an operand wants t and t + 4. Any order of what is summed over is right, so the
// other operand takes these columns in pairs, and nothing changes lanes.
//
// 512 rows of 32 heads of 128 x 128: 5 GFLOP of TF32, 86 MB from L2.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/scratch.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mma_float32.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/small/delta_rule.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kChunk = 32, kTiles = kChunk / 8;  ///< rows; tiles of a product's side
constexpr int kWarps = 4;
constexpr int kFromRows = 128;  ///< steps of up to so many rows go row by row, whose bits no cut changes

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

constexpr int kRowsEach = 8;   ///< of a step: a block takes the chunks that begin there
constexpr int kProducts = 40;  ///< columns of the products' rows, 8 banks apart

template <int kKeys>
struct Products {
  static_assert(2 * kKeys >= kWarps * kChunk);
  alignas(16) float rows[2 * kChunk * kKeys];  ///< keys, queries; afterwards each warp's L
  float of[2 * kChunk][kProducts];             ///< K K^T, Q K^T: up to the diagonal's tiles
  float by[2][kChunk];                         ///< 1 over the length of keys, of queries
};

/// One over the lengths: a warp's rows are 8 of the keys and of the queries.
template <int kKeys>
__device__ __forceinline__ void measure(Products<kKeys>& p, int warp, int lane) {
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

/// A warp's 16 rows of the products.
template <int kKeys>
__device__ __forceinline__ void multiply(Products<kKeys>& p, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, first = warp * 16, tiles = warp % 2 * 2 + 2;
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
#pragma unroll
    for (int e = 0; e < 4; ++e)
      p.of[first + row_in_tile(lane, e)][8 * j + column_in_tile(lane, e)] = sums[j][e];
  }
}

/// A head's T and A, by one warp: a lane has a column. `l` is the warp's own.
template <int kKeys>
__device__ __forceinline__ void solve(const ChunkArgs& a, const Products<kKeys>& p, int head, int first,
                                      int count, int lane, float* l) {
  float decay = 1, beta = 0;  // of row `lane`
  if (lane < count) {
    const float rate = fminf(__ldg(a.rate + head), 0.0f);
    decay = expf(rate * softplus(number_of(a.decay, first + lane, head) + __ldg(a.bias + head)));
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

template <int kKeys>
__global__ void __launch_bounds__(32 * kWarps)
    delta_mixing(const Timestamps timestamps, StepView step, const __grid_constant__ ChunkArgs a) {
  __shared__ Products<kKeys> p;
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int key_head = static_cast<int>(blockIdx.y), each = a.v.heads / a.k.heads;
  const int begin = static_cast<int>(blockIdx.x) * kRowsEach;
  pdl.wait();
  for (int first = begin; first < min(begin + kRowsEach, step.header->rows); ++first) {
    const Run run = step.runs[__ldg(step.run_of + first)];
    if (first != run.first && __ldg(step.positions + first) % kChunk != 0) continue;
    const int count = chunk_end(step, run, first) - first;
    copy_rows<kKeys>(a.k, key_head, first, count, p.rows);
    copy_rows<kKeys>(a.q, key_head, first, count, p.rows + kChunk * kKeys);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    measure(p, warp, lane);
    multiply(p, warp, lane);
    __syncthreads();
    for (int n = warp; n < each; n += kWarps)
      solve(a, p, a.in_turns ? n * a.k.heads + key_head : key_head * each + n, first, count, lane,
            p.rows + warp * kChunk * kChunk);
    __syncthreads();
  }
}

// --- from chunk to chunk ---

constexpr int kColumns = 32;  ///< a block's: two tiles of 16
constexpr int kParts = 2;     ///< warps that share a tile's keys
constexpr int kMostRuns = 8;  ///< blocks along the sequences of a step; more are taken in turns

template <int kKeys>
struct Stage {
  alignas(16) float k[kChunk * kKeys], q[kChunk * kKeys];
  Mixing mixing[kChunk];
};

template <int kKeys>
struct Shared {
  Stage<kKeys> stage[2];
  float4 sums[kWarps][kTiles + kTiles / kParts][32];  ///< what a warp has for the one it shares a tile with
};

template <int kKeys>
__device__ __forceinline__ void copy_chunk(const ChunkArgs& a, int head, int key_head, int first, int count,
                                           Stage<kKeys>& to) {
  copy_rows<kKeys>(a.k, key_head, first, count, to.k);
  copy_rows<kKeys>(a.q, key_head, first, count, to.q);
  const auto* const from = reinterpret_cast<const char*>(a.mixing_of(head, first));
  constexpr int kSixteens = sizeof(Mixing) / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kSixteens; i += 32 * kWarps) {
    copy_async(shared_address(to.mixing) + 16 * i, from + 16 * i, i < count * kSixteens);
  }
  commit_copies();
}

/// A warp's part of a head's matrix: 16 columns are the rows of tiles, and 8 keys a tile's columns. Numbers
/// of a chunk's rows are in tiles likewise, a column of the head each row.
template <int kKeys>
struct Part {
  static constexpr int kKeyTiles = kKeys / kParts / 8;
  float s[kKeyTiles][4] = {};

  /// call(number, key, column), both from the part's first.
  template <typename Each>
  __device__ __forceinline__ void each(int lane, const Each& call) {
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) call(s[m][e], 8 * m + column_in_tile(lane, e), row_in_tile(lane, e));
    }
  }
  /// Its products with rows' keys and queries. key: the part's first.
  __device__ __forceinline__ void multiply(const Stage<kKeys>& chunk, int key, int lane,
                                           float (&known)[kTiles][4], float (&sums)[kTiles][4]) const {
    Tile with_keys[kTiles], with_queries[kTiles];
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
      const Operand state(s[m]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int at = place<kKeys>(8 * i + lane / 4, key + 8 * m + lane % 4 * 2);
        with_keys[i].add(state, pair_at(chunk.k + at));
        with_queries[i].add(state, pair_at(chunk.q + at));
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) known[i][e] = with_keys[i][e], sums[i][e] = with_queries[i][e];
    }
  }
  /// Goes on by a chunk whose rows change it by keys times `changes`.
  __device__ __forceinline__ void go_on(const Stage<kKeys>& chunk, int key, int lane, float decay,
                                        const float (&changes)[kTiles][4]) {
    Tile sums[kKeyTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int row = 8 * j + lane % 4 * 2;
      const Operand change(changes[j]);
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) {
        const int column = key + 8 * m + lane / 4;
        sums[m].add(change, {chunk.k[place<kKeys>(row, column)], chunk.k[place<kKeys>(row + 1, column)]});
      }
    }
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][e] = decay * s[m][e] + sums[m][e];
    }
  }
};

/// What two warps that share a tile tell each other.
struct Exchange {
  float4 (&mine)[kTiles + kTiles / kParts][32];
  const float4 (&others)[kTiles + kTiles / kParts][32];
  int lane;

  __device__ __forceinline__ void tell(int i, const float (&v)[4]) const {
    mine[i][lane] = {v[0], v[1], v[2], v[3]};
  }
  __device__ __forceinline__ void add(int i, float (&v)[4]) const {
    const float4 other = others[i][lane];
    v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
  }
};

template <int kKeys>
__global__ void __launch_bounds__(32 * kWarps)
    delta_chunks(const Timestamps timestamps, StepView step, const __grid_constant__ ChunkArgs a) {
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<kKeys>*>(memory);
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = a.v.columns / kColumns, head = static_cast<int>(blockIdx.x) / blocks;
  const int key_head = a.in_turns ? head % a.k.heads : head / (a.v.heads / a.k.heads);
  const int column =
      static_cast<int>(blockIdx.x) % blocks * kColumns + warp / kParts * 16;  // the warp's first
  const int which = warp % kParts, key = which * (kKeys / kParts);            // likewise
  const int own[2] = {which, kTiles - 1 - which};  // tiles of rows it gives, a short and a long one of A
  const Exchange exchange{shared.sums[warp], shared.sums[warp ^ 1], lane};
  if (static_cast<int>(blockIdx.y) >= step.header->runs) return;
  pdl.wait();
  for (int n = static_cast<int>(blockIdx.y); n < step.header->runs; n += static_cast<int>(gridDim.y)) {
    const Run run = step.runs[n];
    int end = chunk_end(step, run, run.first);
    copy_chunk(a, head, key_head, run.first, end - run.first, shared.stage[0]);
    Part<kKeys> part;
    if (__ldg(step.positions + run.first) != 0)
      part.each(lane, [&](float& s, int k, int c) {
        s = __ldcg(a.state.row(a.layer, run.from, head * kKeys + key + k) + column + c);
      });
    for (int first = run.first, turn = 0, next; first < run.end; first = next, turn ^= 1) {
      const Stage<kKeys>& chunk = shared.stage[turn];
      const int count = end - first;
      wait_copies<0>();
      __syncthreads();
      next = end;
      if (next < run.end) {
        end = min(run.end, next + kChunk);
        copy_chunk(a, head, key_head, next, end - next, shared.stage[turn ^ 1]);
      }
      float values[kTiles][4], known[kTiles][4], sums[kTiles][4], given[2][4];
      const float* from = a.v(first + lane % 4 * 2, head) + column + lane / 4;
#pragma unroll
      for (int i = 0; i < kTiles; ++i, from += 8 * a.v.row_stride) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          values[i][e] = 8 * i + column_in_tile(lane, e) < count
                             ? __ldcg(from + (e % 2 == 0 ? 0 : a.v.row_stride) + e / 2 * 8)
                             : 0.0f;
      }
      part.multiply(chunk, key, lane, known, sums);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) exchange.tell(i, known[i]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float others[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float outer = sums[3 * i][e], inner = sums[1 + i][e];  // tiles 0 and 3; 1 and 2
          given[i][e] = which == 0 ? outer : inner, others[e] = which == 0 ? inner : outer;
        }
        exchange.tell(kTiles + i, others);
      }
      __syncthreads();
      Tile with_t[kTiles], with_a[2];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        exchange.add(j, known[j]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          values[j][e] -= chunk.mixing[8 * j + column_in_tile(lane, e)].by_key * known[j][e];
        const Operand value(values[j]);
#pragma unroll
        for (int i = j; i < kTiles; ++i)
          with_t[i].add(value, pair_at(chunk.mixing[8 * i + lane / 4].t + 8 * j + lane % 4 * 2));
      }
      float changes[kTiles][4];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) changes[j][e] = with_t[j][e];
        const Operand change(changes[j]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (j <= own[i])
            with_a[i].add(change, pair_at(chunk.mixing[8 * own[i] + lane / 4].a + 8 * j + lane % 4 * 2));
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) changes[j][e] *= chunk.mixing[8 * j + column_in_tile(lane, e)].by_change;
      }
      part.go_on(chunk, key, lane, chunk.mixing[count - 1].decay, changes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        exchange.add(kTiles + i, given[i]);
        float* const to = a.out(first + 8 * own[i] + lane % 4 * 2, head) + column + lane / 4;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = 8 * own[i] + column_in_tile(lane, e);
          if (row < count)
            to[(e % 2 == 0 ? 0 : a.out.row_stride) + e / 2 * 8] =
                chunk.mixing[row].by_query * given[i][e] + with_a[i][e];
        }
      }
    }
    part.each(lane, [&](float& s, int k, int c) {
      a.state.row(a.layer, run.to, head * kKeys + key + k)[column + c] = s;
    });
    __syncthreads();  // the next sequence's first chunk goes where this one's last may still be read
  }
}

int64_t scratch_bytes(const Program& program, const Op& record, const Sizes& sizes) {
  Scratch scratch(nullptr);
  scratch.take<Mixing>(program[std::get<DeltaRule>(record.args).v.id].heads() * sizes.rows);
  return scratch.bytes();
}

template <int kKeys>
void launch_keys(const Context& c, const ChunkArgs& args) {
  const auto groups = static_cast<unsigned>((c.step_rows + kRowsEach - 1) / kRowsEach);
  launch(c, delta_mixing<kKeys>, {dim3(groups, static_cast<unsigned>(args.k.heads)), dim3(32 * kWarps)},
         c.step, args);
  const auto blocks = static_cast<unsigned>(args.v.heads * (args.v.columns / kColumns));
  launch(c, delta_chunks<kKeys>,
         {dim3(blocks, kMostRuns), dim3(32 * kWarps), static_cast<int64_t>(sizeof(Shared<kKeys>))}, c.step,
         args);
}

void launch_chunked(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  Scratch scratch(c.scratch);
  const ChunkArgs args{delta_args(op, c), scratch.take<Mixing>(program[op.v.id].heads() * c.step_rows),
                       static_cast<int>(c.step_rows)};
  program[op.k.id].columns() == 64 ? launch_keys<64>(c, args) : launch_keys<128>(c, args);
}

bool serves_chunked(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<DeltaRule>(record.args);
  const int64_t keys = program[op.k.id].columns();
  const auto aligned = [&](const Tensor& tensor) {
    return tensor.stride[0] % 4 == 0 && tensor.stride[1] % 4 == 0 && tensor.offset % 4 == 0;
  };
  return sizes.rows > kFromRows && !op.by_channel(program) && (keys == 64 || keys == 128) &&
         program[op.v.id].columns() % kColumns == 0 && aligned(program[op.k.id]) && aligned(program[op.q.id]);
}

}  // namespace

const Kernel kDeltaRuleChunked{"delta_rule, 32 rows at a time", serves_chunked, launch_chunked,
                               scratch_bytes};

}  // namespace sluice::backend::cuda
