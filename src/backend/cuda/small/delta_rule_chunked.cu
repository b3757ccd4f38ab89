// delta_rule of prompts: 32 rows at a time, by products of matrices (Yang et al. 2025, the chunked form of
// the gated delta rule). With K, Q and V a chunk's rows, S the state before it, and g the decay from the
// chunk's begin through a row, what rows change the state by, row j as k_j u_j, and what they give are
//   U = T (V - g K S),  out = g Q S + A U,  S' = g_end S + (g_end / g K)^T U
// A is Q K^T by the decay between both rows, up to the diagonal; T is (1 + L)^-1 beta, where L is
// beta K K^T by that decay, below the diagonal. Only U, out and S' depend on the state. So two launches: one
// makes T and A of all chunks side by side, the other goes from chunk to chunk.
//
// Where a channel of the keys has a decay of its own, g scales columns of K, Q and S. The first launch leaves
// rows so scaled, g K, g Q and g_end / g K, for the second. Decays between two rows then differ by channel.
// Rows of the two halves of a chunk are multiplied by tensor cores, scaled by the decays from and to the
// border between the halves, which are at most 1. Within a half a key decays from row to row as they are
// added up.
//
// Chunks begin at positions that are multiples of 32, so that a sequence may be cut there without another
// bit. Keys and queries are multiplied as they come: their lengths are factors of rows.
//
// Tensor cores multiply float32 (prim/mma_float32.cuh). Of a product of accumulators, a lane has those of
// columns 2t and 2t + 1 where an operand wants t and t + 4. Any order of what is summed over is right, so the
// other operand takes these columns in pairs, and nothing changes lanes.
//
// 512 rows of 32 heads of 128 x 128: 5 GFLOP of TF32, 86 MB from L2; by channel 118 MB.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/scratch.h"
#include "backend/cuda/small/delta_mixing.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace chunked;
using namespace program;

constexpr int kFromRows = 128;  ///< steps of up to so many rows go row by row, whose bits no cut changes
constexpr int kColumns = 32;    ///< a block's: two tiles of 16
constexpr int kParts = 2;       ///< warps that share a tile's keys
constexpr int kMostRuns = 8;    ///< blocks along the sequences of a step; more are taken in turns

/// Keys and queries as they are multiplied with the state.
template <int kKeys>
struct Knowing {
  alignas(16) float k[kChunk * kKeys], q[kChunk * kKeys];
};

template <int kKeys, bool kByChannel>
struct Stage : Knowing<kKeys> {
  Mixing mixing[kChunk];
};

template <int kKeys>
struct Stage<kKeys, true> {
  alignas(16) float k[kChunk * kKeys];  ///< as they change the state
  float decays[kKeys];
  Mixing mixing[kChunk];
};

template <int kKeys, bool kByChannel>
struct Shared {
  Stage<kKeys, kByChannel> stage[2];
  float4 sums[kWarps][kTiles + kTiles / kParts][32];  ///< what a warp has for the one it shares a tile with
};

/// 99 KB, which all devices have, hold no second such rows: the next ones come when these are multiplied.
template <int kKeys>
struct SharedByChannel : Shared<kKeys, true> {
  Knowing<kKeys> knowing;
};

template <int kKeys>
__device__ __forceinline__ void copy_knowing(const ChunkArgs& a, int key_head, int first, int count,
                                             Knowing<kKeys>& to) {
  copy_rows<kKeys>(a.k, key_head, first, count, to.k);
  copy_rows<kKeys>(a.q, key_head, first, count, to.q);
}

template <int kKeys, bool kByChannel>
__device__ __forceinline__ void copy_chunk(const ChunkArgs& a, int head, int key_head, int first, int count,
                                           Stage<kKeys, kByChannel>& to) {
  if constexpr (kByChannel) {
    copy_rows<kKeys>(a.k_left, head, first, count, to.k);
    const int c = 4 * static_cast<int>(threadIdx.x);
    if (c < kKeys) copy_async(shared_address(to.decays + c), a.decays(first + count - 1, head) + c);
  } else {
    copy_knowing(a, key_head, first, count, to);
  }
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
  __device__ __forceinline__ void multiply(const Knowing<kKeys>& chunk, int key, int lane,
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
  /// Goes on by a chunk whose rows change it by keys times `changes`. decay_of: a key.
  template <typename DecayOf>
  __device__ __forceinline__ void go_on(const float (&k)[kChunk * kKeys], int key, int lane,
                                        const DecayOf& decay_of, const float (&changes)[kTiles][4]) {
    Tile sums[kKeyTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int row = 8 * j + lane % 4 * 2;
      const Operand change(changes[j]);
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) {
        const int column = key + 8 * m + lane / 4;
        sums[m].add(change, {k[place<kKeys>(row, column)], k[place<kKeys>(row + 1, column)]});
      }
    }
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[m][e] = decay_of(key + 8 * m + column_in_tile(lane, e)) * s[m][e] + sums[m][e];
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

template <int kKeys, bool kByChannel>
__global__ void __launch_bounds__(32 * kWarps)
    delta_chunks(const Timestamps timestamps, StepView step, const __grid_constant__ ChunkArgs a) {
  extern __shared__ char memory[];
  using Shared = std::conditional_t<kByChannel, SharedByChannel<kKeys>, Shared<kKeys, false>>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = a.v.columns / kColumns, head = static_cast<int>(blockIdx.x) / blocks;
  const int key_head = a.key_head(head);
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
    if constexpr (kByChannel) copy_knowing(a, key_head, run.first, end - run.first, shared.knowing);
    copy_chunk(a, head, key_head, run.first, end - run.first, shared.stage[0]);
    Part<kKeys> part;
    if (__ldg(step.positions + run.first) != 0)
      part.each(lane, [&](float& s, int k, int c) {
        s = __ldcg(a.state.row(a.layer, run.from, head * kKeys + key + k) + column + c);
      });
    for (int first = run.first, turn = 0, next; first < run.end; first = next, turn ^= 1) {
      const auto& chunk = shared.stage[turn];
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
      if constexpr (kByChannel) {
        part.multiply(shared.knowing, key, lane, known, sums);
      } else {
        part.multiply(chunk, key, lane, known, sums);
      }
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
      if constexpr (kByChannel) {
        if (next < run.end) copy_knowing(a, key_head, next, end - next, shared.knowing), commit_copies();
      }
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
      if constexpr (kByChannel) {
        part.go_on(
            chunk.k, key, lane, [&](int k) { return chunk.decays[k]; }, changes);
      } else {
        const float decay = chunk.mixing[count - 1].decay;
        part.go_on(
            chunk.k, key, lane, [&](int) { return decay; }, changes);
      }
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

/// What both launches share; without memory it counts.
ChunkArgs take(Scratch& scratch, const Program& program, const DeltaRule& op, int64_t rows) {
  const int64_t heads = program[op.v.id].heads(), keys = program[op.k.id].columns();
  ChunkArgs args{};
  args.mixing = scratch.take<Mixing>(heads * rows), args.step_rows = static_cast<int>(rows);
  if (op.by_channel(program)) {
    for (Rows<float>* part : {&args.k_since, &args.q_since, &args.k_left, &args.decays})
      *part = {scratch.take<float>(rows * heads * keys), heads * keys, keys, static_cast<int32_t>(heads),
               static_cast<int32_t>(keys)};
  }
  return args;
}

int64_t scratch_bytes(const Program& program, const Op& record, const Sizes& sizes) {
  Scratch scratch(nullptr);
  take(scratch, program, std::get<DeltaRule>(record.args), sizes.rows);
  return scratch.bytes();
}

template <int kKeys, bool kByChannel>
void launch_keys(const Context& c, ChunkArgs args) {
  using Shared = std::conditional_t<kByChannel, SharedByChannel<kKeys>, Shared<kKeys, false>>;
  const auto groups = static_cast<unsigned>((c.step_rows + kRowsEach - 1) / kRowsEach);
  const auto heads = static_cast<unsigned>(kByChannel ? args.v.heads : args.k.heads);
  launch(c, delta_mixing<kKeys, kByChannel>,
         {dim3(groups, heads), dim3(32 * kWarps),
          kByChannel ? static_cast<int64_t>(sizeof(Products<kKeys, true>)) : 0},
         c.step, args);
  if (kByChannel) args.k = args.k_since, args.q = args.q_since;
  const auto blocks = static_cast<unsigned>(args.v.heads * (args.v.columns / kColumns));
  launch(c, delta_chunks<kKeys, kByChannel>,
         {dim3(blocks, kMostRuns), dim3(32 * kWarps), static_cast<int64_t>(sizeof(Shared))}, c.step, args);
}

template <int kKeys>
void launch_keys(const Context& c, bool by_channel, const ChunkArgs& args) {
  by_channel ? launch_keys<kKeys, true>(c, args) : launch_keys<kKeys, false>(c, args);
}

void launch_chunked(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  Scratch scratch(c.scratch);
  ChunkArgs args = take(scratch, program, op, c.step_rows);
  static_cast<DeltaArgs&>(args) = delta_args(op, c);
  const bool by_channel = op.by_channel(program);
  program[op.k.id].columns() == 64 ? launch_keys<64>(c, by_channel, args)
                                   : launch_keys<128>(c, by_channel, args);
}

bool serves_chunked(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<DeltaRule>(record.args);
  const int64_t keys = program[op.k.id].columns();
  const auto aligned = [&](const Tensor& tensor) {
    return tensor.stride[0] % 4 == 0 && tensor.stride[1] % 4 == 0 && tensor.offset % 4 == 0;
  };
  return sizes.rows > kFromRows && (keys == 64 || keys == 128) &&
         program[op.v.id].columns() % kColumns == 0 && aligned(program[op.k.id]) && aligned(program[op.q.id]);
}

}  // namespace

const Kernel kDeltaRuleChunked{"delta_rule, 32 rows at a time", serves_chunked, launch_chunked,
                               scratch_bytes};

}  // namespace sluice::backend::cuda
