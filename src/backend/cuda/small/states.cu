// Ops that keep a matrix of every sequence: delta_rule, and delta_net, which is causal_conv and delta_rule
// with a gated norm behind.
//
// delta_rule: a row depends on the one before, so what counts is how long one takes. Of a block's warps half
// keep 8 columns each of a head's matrix in registers, 8 lanes a pair of columns, and go through the rows of
// a sequence one by one: a row is two products with what the lanes have, three rounds of shuffles, and the
// change. The other half are ahead of them by some rows: they make unit vectors and decays of what rows
// bring, in shared memory. The matrix is read and written once a step.
//
// Prompts go in chunks (delta_rule_chunked.cu).
//
// delta_net, of few rows: those that prepare make the convolution, too, and a head's blocks are a cluster, in
// which they tell each other what they have made for the norm. It gives the bits of the three ops.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/small/delta_rule.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kWarps = 4;       ///< that go on by rows, and as many that prepare them
constexpr int kColumns = 8;     ///< a warp's: a sector of a row of the matrix
constexpr int kKeyLanes = 8;    ///< lanes that share two columns
constexpr int kRuleBlocks = 2;  ///< of delta_rule an SM, which share a step's sequences

constexpr int kNetTaps = 4;       ///< of a delta_net's convolution
constexpr int kNetRows = kWarps;  ///< of its step; more are sooner by the three ops (H200, 8: 25 us a layer)

/// Of q, k and v only the shapes count: the numbers are those of `in`, before the convolution.
struct NetArgs : DeltaArgs {
  Rows<float> in, gate;
  const float4* taps;  ///< of a column
  State before;
  const float* norm;
  float epsilon;
  bool silu, sigmoid;  ///< silu: of the convolution; sigmoid: the gate's form
};

/// What some rows bring for the columns of a block.
template <int kKeys, bool kByChannel>
struct Prepared {
  static constexpr int kRows = kKeys <= 64 ? 16 : 1024 / kKeys;
  alignas(16) float k[kRows][kKeys], q[kRows][kKeys], decays[kByChannel ? kRows : 1][kKeys];
  alignas(16) float values[kRows][kWarps * kColumns];
  float4 one[kRows];  ///< decay of all keys, beta, k . q, nothing
};

/// Which block's part of which head.
struct Place {
  int head, key_head, column;
  float rate;
};

/// A lane's numbers of a row: of queries and keys every 32nd, and one value.
template <int kKeys, bool kByChannel>
struct RowPart {
  static constexpr int kEach = kKeys / 32;
  float q[kEach], k[kEach], decay[kByChannel ? kEach : 1], value, beta;

  __device__ __forceinline__ void load_decay(const DeltaArgs& a, const Place& place, int row, int lane) {
#pragma unroll
    for (int i = 0; i < (kByChannel ? kEach : 1); ++i) {  // or one is for all
      const int at = kByChannel ? place.head * kKeys + 32 * i + lane : place.head;
      decay[i] = number_of(a.decay, row, at) + __ldg(a.bias + at);
    }
    beta = number_of(a.beta, row, place.head);
  }
  __device__ __forceinline__ void load(const DeltaArgs& a, const Place& place, int row, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      q[i] = __ldcg(a.q(row, place.key_head) + 32 * i + lane);
      k[i] = __ldcg(a.k(row, place.key_head) + 32 * i + lane);
    }
    load_decay(a, place, row, lane);
    const int c = place.column + lane;
    value = c < a.v.columns ? __ldcg(a.v(row, place.head) + c) : 0.0f;
  }
  /// Leaves how much of the matrix stays and how much of the change counts as those of row `at`.
  __device__ __forceinline__ void leave_decay(const Place& place, int lane, int at,
                                              Prepared<kKeys, kByChannel>& to) const {
    if constexpr (kByChannel) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) to.decays[at][32 * i + lane] = expf(place.rate * softplus(decay[i]));
    }
    if (lane != 0) return;
    to.one[at].x = kByChannel ? 1.0f : expf(place.rate * softplus(decay[0]));
    to.one[at].y = 1.0f / (1.0f + expf(-beta));
  }
  /// Leaves the unit vectors of row `at`. A whole warp calls it.
  __device__ __forceinline__ void leave_vectors(int lane, int at, Prepared<kKeys, kByChannel>& to) const {
    float products[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      products[0] += k[i] * k[i], products[1] += q[i] * q[i], products[2] += k[i] * q[i];
    const float sums = lane_sums<4>(products);  // each of 8 lanes
    constexpr auto kEpsilon = static_cast<float>(DeltaRule::kEpsilon);
    const float by_k = 1.0f / sqrtf(__shfl_sync(kWholeWarp, sums, 0) + kEpsilon);
    const float by_q =
        1.0f / (sqrtf(__shfl_sync(kWholeWarp, sums, 8) + kEpsilon) * sqrtf(static_cast<float>(kKeys)));
    const float key_query = __shfl_sync(kWholeWarp, sums, 16) * by_k * by_q;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      to.k[at][32 * i + lane] = k[i] * by_k, to.q[at][32 * i + lane] = q[i] * by_q;
    if (lane == 0) to.one[at].z = key_query;
  }
};

/// A warp prepares every kWarps-th of the rows from `first` on; what it loads of all of them is on its way
/// before the first is needed.
template <int kKeys, bool kByChannel>
__device__ __forceinline__ void prepare(const DeltaArgs& a, const Place& place, int first, int end, int warp,
                                        int lane, Prepared<kKeys, kByChannel>& to) {
  constexpr int kMine = Prepared<kKeys, kByChannel>::kRows / kWarps;
  RowPart<kKeys, kByChannel> rows[kMine];
#pragma unroll
  for (int n = 0; n < kMine; ++n) rows[n].load(a, place, min(first + warp + n * kWarps, end - 1), lane);
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
    const int at = warp + n * kWarps;
    if (first + at >= end) break;
    rows[n].leave_vectors(lane, at, to), rows[n].leave_decay(place, lane, at, to);
    to.values[at][lane] = rows[n].value;
  }
}

/// What a thread convolves for a delta_net: a column of its key head's queries and keys, and those of the
/// first warp a value.
template <int kKeys, int kRows>
struct Convolved {
  static constexpr int kCount = 3, kBefore = kNetTaps - 1;
  const NetArgs& a;
  const int thread;
  int column[kCount];
  float weights[kCount][kNetTaps], before[kCount][kBefore], in[kCount][kRows];

  __device__ __forceinline__ bool has(int i) const { return thread < (i == 2 ? kWarps * kColumns : kKeys); }
  /// Asks for the taps, and for what the state has.
  __device__ __forceinline__ Convolved(const NetArgs& args, const Place& place, const Run& run, bool begins,
                                       int number)
      : a(args), thread(number) {
    const int keys = a.k.heads * kKeys;
    column[0] = place.key_head * kKeys + thread, column[1] = keys + column[0];
    column[2] = 2 * keys + place.head * a.v.columns + place.column + thread;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool here = has(i);
      const float4 w = here ? __ldg(a.taps + column[i]) : float4{0, 0, 0, 0};
      weights[i][0] = w.x, weights[i][1] = w.y, weights[i][2] = w.z, weights[i][3] = w.w;
#pragma unroll
      for (int t = 0; t < kBefore; ++t)
        before[i][t] = here && !begins ? __ldcg(a.before.row(a.layer, run.from, t) + column[i]) : 0.0f;
    }
  }
  /// Asks for the run's rows.
  __device__ __forceinline__ void ask(const Run& run) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        in[i][r] = has(i) && run.first + r < run.end ? __ldcg(a.in(run.first + r) + column[i]) : 0.0f;
    }
  }
  /// Calls put(r, i, number) of each row and column. Behind it `before` is what the state behind the run has.
  template <typename Put>
  __device__ __forceinline__ void run(int rows, Put put) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < kBefore; ++t) sum += weights[i][t] * before[i][t];
        sum += weights[i][kBefore] * in[i][r];
        if (has(i)) put(r, i, a.silu ? sum / (1.0f + expf(-sum)) : sum);
#pragma unroll
        for (int t = 0; t + 1 < kBefore; ++t) before[i][t] = before[i][t + 1];
        before[i][kBefore - 1] = in[i][r];
      }
    }
  }
  /// keys: those of queries and keys, too.
  __device__ __forceinline__ void leave_state(const Run& run, bool keys) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!has(i) || (i != 2 && !keys)) continue;
#pragma unroll
      for (int t = 0; t < kBefore; ++t) a.before.row(a.layer, run.to, t)[column[i]] = before[i][t];
    }
  }
};

/// A lane's part of the matrix: of every 32 keys four, and two columns.
template <int kKeys, bool kByChannel>
struct Part {
  static constexpr int kFours = kKeys / (4 * kKeyLanes);
  float s[kFours][4][2];

  template <typename Each>
  __device__ __forceinline__ void each(const State& state, int layer, int slot, int head, int lane,
                                       const Each& call) {
    float* const first = state.row(layer, slot, head * kKeys + 4 * (lane % kKeyLanes));
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) call(s[i][e], first + (4 * kKeyLanes * i + e) * state.columns);
    }
  }
  /// column: the lane's first one. kWhole: the state has both of them, and an even number in all.
  template <bool kWhole>
  __device__ __forceinline__ void load(const State& state, int layer, int slot, int head, int lane,
                                       int column) {
    each(state, layer, slot, head, lane, [&](float(&two)[2], const float* row) {
      if (kWhole || (state.columns % 2 == 0 && column < state.columns)) {
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(row + column));
        two[0] = pair.x, two[1] = pair.y;
      } else {
        two[0] = column < state.columns ? __ldcg(row + column) : 0.0f;
        two[1] = column + 1 < state.columns ? __ldcg(row + column + 1) : 0.0f;
      }
    });
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(const State& state, int layer, int slot, int head, int lane,
                                        int column) {
    each(state, layer, slot, head, lane, [&](float(&two)[2], float* row) {
      if (kWhole || (state.columns % 2 == 0 && column < state.columns)) {
        *reinterpret_cast<float2*>(row + column) = {two[0], two[1]};
      } else {
        if (column < state.columns) row[column] = two[0];
        if (column + 1 < state.columns) row[column + 1] = two[1];
      }
    });
  }

  /// Goes on by row `at`; what it gives for the lane's two columns, in all lanes that share them.
  __device__ __forceinline__ float2 go_on(const Prepared<kKeys, kByChannel>& rows, int at, int pair,
                                          int lane) {
    const float4 one = rows.one[at];
    const float2 value = reinterpret_cast<const float2*>(rows.values[at])[pair];
    float k[kFours][4], known[2] = {0, 0}, out[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int four = kKeyLanes * i + lane % kKeyLanes;
      const float4 k4 = reinterpret_cast<const float4*>(rows.k[at])[four];
      const float4 q4 = reinterpret_cast<const float4*>(rows.q[at])[four];
      const float q[4] = {q4.x, q4.y, q4.z, q4.w};
      k[i][0] = k4.x, k[i][1] = k4.y, k[i][2] = k4.z, k[i][3] = k4.w;
      float decays[4] = {one.x, one.x, one.x, one.x};
      if constexpr (kByChannel) {
        const float4 d4 = reinterpret_cast<const float4*>(rows.decays[at])[four];
        decays[0] = d4.x, decays[1] = d4.y, decays[2] = d4.z, decays[3] = d4.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          s[i][e][c] *= decays[e];
          known[c] += k[i][e] * s[i][e][c];
          out[c] += q[e] * s[i][e][c];
        }
      }
    }
#pragma unroll
    for (int step = 1; step < kKeyLanes; step *= 2) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        known[c] += __shfl_xor_sync(kWholeWarp, known[c], step);
        out[c] += __shfl_xor_sync(kWholeWarp, out[c], step);
      }
    }
    const float change[2] = {one.y * (value.x - known[0]), one.y * (value.y - known[1])};
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < 2; ++c) s[i][e][c] += k[i][e] * change[c];
      }
    }
    return {out[0] + one.z * change[0], out[1] + one.z * change[1]};
  }
};

/// Matrices on their way, a thread's part each.
template <int kKeys>
struct Ahead {
  static constexpr bool kThere = kKeys <= 128;  ///< more would want more shared memory than all kernels have
  static constexpr int kCount = kThere ? kKeys / kKeyLanes : 1;
  float2 of[kCount][32 * kWarps];

  __device__ __forceinline__ void ask(const State& state, int layer, int slot, int head, int lane,
                                      int column) {
    const float* const first = state.row(layer, slot, head * kKeys + 4 * (lane % kKeyLanes)) + column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float* const from = first + (i / 4 * 4 * kKeyLanes + i % 4) * state.columns;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(
                       static_cast<uint32_t>(__cvta_generic_to_shared(&of[i][threadIdx.x]))),
                   "l"(from)
                   : "memory");
    }
  }
  /// Columns that the state does not have are as they were.
  template <bool kByChannel>
  __device__ __forceinline__ void take(Part<kKeys, kByChannel>& part) const {
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 two = of[i][threadIdx.x];
      part.s[i / 4][i % 4][0] = two.x, part.s[i / 4][i % 4][1] = two.y;
    }
  }
};

/// A block takes neighbouring sequences of a step, whose rows are neighbours, too: rows are prepared ahead
/// whatever sequence they are of, and a sequence's matrix comes while the one before is at work.
template <int kKeys, bool kByChannel>
__global__ void __launch_bounds__(64 * kWarps, kKeys <= 128 ? kRuleBlocks : 1)
    delta_rule(const Timestamps timestamps, StepView step, const __grid_constant__ DeltaArgs a) {
  using Rows = Prepared<kKeys, kByChannel>;
  __shared__ Rows prepared[2];
  __shared__ Ahead<kKeys> ahead;
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int blocks = (a.v.columns + kWarps * kColumns - 1) / (kWarps * kColumns);
  Place place;
  place.head = static_cast<int>(blockIdx.x) / blocks;
  place.column = static_cast<int>(blockIdx.x) % blocks * kWarps * kColumns;
  place.key_head = a.in_turns ? place.head % a.k.heads : place.head / (a.v.heads / a.k.heads);
  place.rate = fminf(__ldg(a.rate + place.head), 0.0f);
  const bool prepares = warp >= kWarps;
  const int pair = warp % kWarps * (kColumns / 2) + lane / kKeyLanes;  // of the block's columns
  const int column = place.column + 2 * pair;
  const int all = step.header->runs, y = static_cast<int>(blockIdx.y), shares = static_cast<int>(gridDim.y);
  int n = all * y / shares;
  const int runs_end = all * (y + 1) / shares;
  if (n >= runs_end) return pdl.wait();
  const int end = step.runs[runs_end - 1].end;
  const int begin = step.runs[n].first;
  // A lane has a sequence of 32. States are an earlier step's.
  Run own;
  bool own_begins;
  int base;
  const auto fetch = [&] {
    base = n, own = step.runs[min(n + lane, runs_end - 1)];
    own_begins = __ldg(step.positions + own.first) == 0;
  };
  const auto of = [&](int value, int i) { return __shfl_sync(kWholeWarp, value, i - base); };
  Part<kKeys, kByChannel> part;
  const auto load = [&] {
    const int from = of(own.from, n);
    if (of(own_begins, n) != 0) {
      part = {};
    } else {
      part.template load<false>(a.state, a.layer, from, place.head, lane, column);
    }
  };
  bool asked = false;  // for the next sequence's matrix
  const auto ask = [&] {
    if (!Ahead<kKeys>::kThere || n + 1 >= runs_end || n + 1 - base == 32) return;
    const int from = of(own.from, n + 1);
    asked = a.state.columns % 2 == 0 && of(own_begins, n + 1) == 0;
    if (asked && column < a.state.columns) ahead.ask(a.state, a.layer, from, place.head, lane, column);
  };
  fetch();
  int run_end = of(own.end, n);
  if (!prepares) load(), ask();
  pdl.wait();
  if (prepares) prepare(a, place, begin, end, warp - kWarps, lane, prepared[0]);
  __syncthreads();
  for (int first = begin, turn = 0, r = first; first < end; first += Rows::kRows, turn ^= 1) {
    const int stop = min(first + Rows::kRows, end);
    if (prepares) {
      if (stop < end) prepare(a, place, stop, end, warp - kWarps, lane, prepared[turn ^ 1]);
    } else {
      while (r < stop) {
        const int until = min(stop, run_end);
#pragma unroll 2
        for (; r < until; ++r) {
          const float2 out = part.go_on(prepared[turn], r - first, pair, lane);
          if (lane % kKeyLanes == 0) {
            if (column < a.v.columns) a.out(r, place.head)[column] = out.x;
            if (column + 1 < a.v.columns) a.out(r, place.head)[column + 1] = out.y;
          }
        }
        if (r < run_end) continue;
        part.template store<false>(a.state, a.layer, of(own.to, n), place.head, lane, column);
        if (++n == runs_end) break;
        if (n - base == 32) fetch();
        run_end = of(own.end, n);
        asked ? ahead.take(part) : load();
        asked = false, ask();
      }
    }
    __syncthreads();
  }
}

/// Named barrier 1: for the warps that prepare rows.
__device__ inline void sync_preparing() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory"); }

/// A cluster has a head of a sequence: steps of kRows rows at most. kEachSm: thread blocks of an SM at a
/// time.
template <int kKeys, int kRows, int kEachSm>
__global__ void __launch_bounds__(64 * kWarps, kEachSm)
    delta_net(const Timestamps timestamps, StepView step, const __grid_constant__ NetArgs a) {
  using Rows = Prepared<kKeys, false>;
  static_assert(Rows::kRows >= kRows && kRows <= kNetRows && kKeys <= 32 * kWarps);
  __shared__ Rows prepared;
  __shared__ float made[kRows][kMostInCluster * kWarps * kColumns];  // by all blocks of the cluster
  __shared__ Arrivals arrivals;
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto rank = static_cast<int>(cluster_rank());
  const int blocks = a.v.columns / (kWarps * kColumns);  // of the cluster
  Place place;
  place.head = static_cast<int>(blockIdx.x) / blocks;
  place.column = rank * kWarps * kColumns;
  const int each = a.v.heads / a.k.heads;  // heads of a key head
  place.key_head = a.in_turns ? place.head % a.k.heads : place.head / each;
  const bool first_of_key = a.in_turns ? place.head < a.k.heads : place.head % each == 0;
  const bool prepares = warp >= kWarps;
  const int pair = warp % kWarps * (kColumns / 2) + lane / kKeyLanes;  // of the block's columns
  const int column = place.column + 2 * pair;
  if (static_cast<int>(blockIdx.y) >= step.header->runs) return;  // all of the cluster
  const Run run = step.runs[blockIdx.y];
  const int rows = run.end - run.first;
  const bool begins = __ldg(step.positions + run.first) == 0;
  // A warp norms a row, a lane has one of the block's columns.
  static_assert(kWarps * kColumns == 32 && kRows <= 2 * kWarps);
  const int own = place.column + lane;
  if (threadIdx.x == 0) arrivals.begin(), arrivals.expect(4 * rows * (a.v.columns - kWarps * kColumns));
  cluster_here();
  // States are an earlier step's.
  Part<kKeys, false> part;
  float gate = 0;
  if (prepares) {
    place.rate = fminf(__ldg(a.rate + place.head), 0.0f);
    const int preparing = warp - kWarps;
    Convolved<kKeys, kRows> convolved(a, place, run, begins, static_cast<int>(threadIdx.x) - 32 * kWarps);
    pdl.wait();
    convolved.ask(run);
    if (warp < rows) gate = __ldcg(a.gate(run.first + warp, place.head) + own);
    // Another warp than the one that makes its vectors has a row's decay.
    RowPart<kKeys, false> part_of_row;
#pragma unroll 1
    for (int at = kWarps - 1 - preparing; at < rows; at += kWarps) {
      part_of_row.load_decay(a, place, run.first + at, lane);
      part_of_row.leave_decay(place, lane, at, prepared);
    }
    convolved.run(rows, [&](int r, int i, float value) {
      float* const to = i == 0 ? prepared.q[r] : i == 1 ? prepared.k[r] : prepared.values[r];
      to[convolved.thread] = value;
    });
    sync_preparing();
#pragma unroll 1
    for (int at = preparing; at < rows; at += kWarps) {
#pragma unroll
      for (int i = 0; i < part_of_row.kEach; ++i)
        part_of_row.q[i] = prepared.q[at][32 * i + lane], part_of_row.k[i] = prepared.k[at][32 * i + lane];
      part_of_row.leave_vectors(lane, at, prepared);
    }
    __syncthreads();
    convolved.leave_state(run, first_of_key && rank == 0);
  } else {
    if (begins) {
      part = {};
    } else {
      part.load<true>(a.state, a.layer, run.from, place.head, lane, column);
    }
    pdl.wait();
    if (warp < rows) gate = __ldcg(a.gate(run.first + warp, place.head) + own);
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      const float2 out = part.go_on(prepared, r, pair, lane);
      if (lane % kKeyLanes == 0) made[r][column] = out.x, made[r][column + 1] = out.y;
    }
  }
  const float weight = __ldg(a.norm + own);
  __syncthreads();
  cluster_all();  // everybody counts by now
  const float value = warp < rows ? made[warp][own] : 0.0f;
  for (int to = 0; to < blocks && warp < rows; ++to)
    if (to != rank) arrivals.push(&made[warp][own], static_cast<unsigned>(to), value);
  if (!prepares) part.store<true>(a.state, a.layer, run.to, place.head, lane, column);
  if (warp >= rows) return;
  arrivals.wait();
  float squares = 0;
  for (int c = lane; c < a.v.columns; c += 32) squares += made[warp][c] * made[warp][c];
  const float inverse = 1.0f / sqrtf(lane_sum(squares) / static_cast<float>(a.v.columns) + a.epsilon);
  const float open = 1.0f / (1.0f + expf(-gate));
  a.out(run.first + warp, place.head)[own] = value * inverse * weight * (a.sigmoid ? open : gate * open);
}

template <int kKeys>
void launch_keys(const Context& c, const LaunchShape& shape, bool by_channel, const DeltaArgs& args) {
  launch(c, by_channel ? delta_rule<kKeys, true> : delta_rule<kKeys, false>, shape, c.step, args);
}

void launch_delta_rule(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  const DeltaArgs args = delta_args(op, c);
  const Tensor& v = program[op.v.id];
  const int64_t blocks = v.heads() * ((v.columns() + kWarps * kColumns - 1) / (kWarps * kColumns));
  const int64_t shares = std::clamp<int64_t>(kRuleBlocks * c.sm_count / blocks, 1, c.rows(v));
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shares)),
                          dim3(64 * kWarps)};
  const bool by_channel = op.by_channel(program);
  switch (program[op.k.id].columns()) {
    case 32: return launch_keys<32>(c, shape, by_channel, args);
    case 64: return launch_keys<64>(c, shape, by_channel, args);
    case 128: return launch_keys<128>(c, shape, by_channel, args);
    default: return launch_keys<256>(c, shape, by_channel, args);
  }
}

bool serves_delta_rule(const Program& program, const Op& record, const Sizes&) {
  const int64_t keys = program[std::get<DeltaRule>(record.args).k.id].columns();
  return keys == 32 || keys == 64 || keys == 128 || keys == 256;
}

void launch_delta_net(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaNet>(record.args);
  const DeltaRule::Shape shape = op.shape(program);
  NetArgs args{};
  args.q.heads = args.k.heads = static_cast<int>(shape.key_heads);
  args.q.columns = args.k.columns = static_cast<int>(shape.keys);
  args.v.heads = static_cast<int>(shape.heads), args.v.columns = static_cast<int>(shape.values);
  args.decay = c.memory.rows(op.rule.decay.id), args.beta = c.memory.rows(op.rule.beta.id);
  args.out = c.memory.rows(op.norm.out.id);
  args.rate = c.memory.vector(op.rule.rate.id), args.bias = c.memory.vector(op.rule.bias.id);
  args.state = c.memory.state(op.rule.state.id), args.layer = op.rule.cache_layer;
  args.in_turns = op.rule.in_turns;
  args.in = c.memory.rows(op.conv.in.id), args.gate = c.memory.rows(op.norm.gate.id);
  const Matrix taps = c.memory.matrix(op.conv.weight.id);
  args.taps = reinterpret_cast<const float4*>(taps.codes) + taps.row(0, 0),
  args.before = c.memory.state(op.conv.state.id);
  args.norm = c.memory.vector(op.norm.weight.id), args.epsilon = op.norm.epsilon;
  args.silu = op.conv.silu, args.sigmoid = op.norm.form == GateForm::Sigmoid;
  const auto blocks = static_cast<int>(shape.values / (kWarps * kColumns));
  const LaunchShape launched{dim3(static_cast<unsigned>(shape.heads * blocks),
                                  static_cast<unsigned>(c.rows(program[op.conv.in.id]))),
                             dim3(64 * kWarps), 0, blocks};
  // Of one sequence all thread blocks are there at a time as they are; of more, a third one an SM is worth
  // registers that go to memory.
  const bool one = c.rows(program[op.conv.in.id]) == 1;
  if (shape.keys == 64)
    return launch(c, one ? delta_net<64, 1, 2> : delta_net<64, kNetRows, 3>, launched, c.step, args);
  launch(c, one ? delta_net<128, 1, 2> : delta_net<128, kNetRows, 3>, launched, c.step, args);
}

bool serves_delta_net(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<DeltaNet>(record.args);
  const Tensor& taps = program[op.conv.weight.id];
  const DeltaRule::Shape shape = op.shape(program);
  return sizes.rows <= kNetRows && sizes.architecture >= 90 && (shape.keys == 64 || shape.keys == 128) &&
         shape.values % (kWarps * kColumns) == 0 && shape.values <= kMostInCluster * kWarps * kColumns &&
         taps.type == quant::Type::F32 && taps.columns() == kNetTaps && taps.offset % 4 == 0 &&
         op.conv.cache_layer == op.rule.cache_layer;
}

}  // namespace

const Kernel kDeltaRule{"delta_rule", serves_delta_rule, launch_delta_rule};
const Kernel kDeltaNet{"convolution, delta_rule and gated norm", serves_delta_net, launch_delta_net};

}  // namespace sluice::backend::cuda
