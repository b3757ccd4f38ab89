// The ops that keep a state of every sequence: causal_conv and delta_rule.
//
// delta_rule: a warp has kColumns columns of a head's matrix in registers, some rows of them a lane, and goes
// through the rows of a sequence one by one. What a row brings is loaded while the one before is computed; a
// row takes two rounds of shuffles, and no warp waits for another. The matrix is read and written once a
// step.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

// --- causal_conv ---

constexpr int kThreads = 256;
constexpr int kConvRows = 8;  ///< a block's
constexpr int kMostTaps = 8;

struct ConvArgs {
  Rows<float> in, out;
  Matrix weight;
  State state;
  int layer;
  bool silu;
};

/// A thread has a column of kConvRows rows. Whoever has a sequence's last row writes the state behind it.
__global__ void __launch_bounds__(kThreads)
    causal_conv(const Timestamps timestamps, StepView step, const __grid_constant__ ConvArgs a) {
  const PdlLink pdl(timestamps);
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), taps = a.weight.columns,
            before = taps - 1;
  float weights[kMostTaps];
  if (c < a.in.columns) {
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k)
      if (k < taps) weights[k] = float_number(a.weight.type, a.weight.codes, a.weight.row(0, c) * taps + k);
  }
  pdl.wait();
  if (c >= a.in.columns) return;
  const int first_row = static_cast<int>(blockIdx.y) * kConvRows;
  for (int r = first_row; r < first_row + kConvRows && r < step.header->rows; ++r) {
    const Run run = step.runs[__ldg(step.run_of + r)];
    const bool begins = __ldg(step.positions + run.first) == 0;
    // Number i of those kept before the step, then of its own.
    const auto number = [&](int i) {
      if (i >= before) return __ldcg(a.in(run.first + i - before) + c);
      return begins ? 0.0f : __ldcg(a.state.row(a.layer, run.from, i) + c);
    };
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k)
      if (k < taps) sum += weights[k] * number(r - run.first + k);
    a.out(r)[c] = a.silu ? sum / (1.0f + expf(-sum)) : sum;
    if (r + 1 != run.end) continue;
    for (int i = 0; i < before; ++i) a.state.row(a.layer, run.to, i)[c] = number(run.end - run.first + i);
  }
}

void launch_causal_conv(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<CausalConv>(record.args);
  const ConvArgs args{c.memory.rows(op.in.id),     c.memory.rows(op.out.id), c.memory.matrix(op.weight.id),
                      c.memory.state(op.state.id), op.cache_layer,           op.silu};
  const auto columns = static_cast<unsigned>(program[op.in.id].columns());
  const auto rows = static_cast<unsigned>(c.rows(program[op.in.id]));
  launch(c, causal_conv,
         LaunchShape{dim3((columns + kThreads - 1) / kThreads, (rows + kConvRows - 1) / kConvRows),
                     dim3(kThreads)},
         c.step, args);
}

bool serves_causal_conv(const Program& program, const Op& record, const Sizes&) {
  const Tensor& weight = program[std::get<CausalConv>(record.args).weight.id];
  return quant::type_info(weight.type).block == 1 && weight.columns() <= kMostTaps;
}

// --- delta_rule ---

constexpr int kWarps = 4;
constexpr int kColumns = 8;      ///< a warp's: a sector of a row of the matrix
constexpr int kMostRuns = 1024;  ///< blocks along the sequences of a step; more are taken in turns

struct DeltaArgs {
  Rows<float> q, k, v, decay, beta, out;
  const float *rate, *bias;
  State state;
  int layer;
  bool in_turns, by_channel;
};

/// Number i of a row, its heads one after the other.
__device__ __forceinline__ float number_of(const Rows<float>& rows, int row, int i) {
  return __ldcg(rows(row, i / rows.columns) + i % rows.columns);
}

/// What a row brings for a warp: keys from lane * kKeys on, and kColumns values, one a lane of the first.
template <int kKeys>
struct Brought {
  float q[kKeys], k[kKeys], decay[kKeys];
  float value, beta;
};

template <int kKeys>
__device__ __forceinline__ Brought<kKeys> bring(const DeltaArgs& a, int row, int head, int key_head,
                                                int column, int lane) {
  Brought<kKeys> b;
  const float *q = a.q(row, key_head) + lane * kKeys, *k = a.k(row, key_head) + lane * kKeys;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    b.q[i] = __ldcg(q + i), b.k[i] = __ldcg(k + i);
    if (i > 0 && !a.by_channel) continue;  // one is for all
    const int at = a.by_channel ? (head * 32 + lane) * kKeys + i : head;
    b.decay[i] = number_of(a.decay, row, at) + __ldg(a.bias + at);
  }
  const int c = column + lane % kColumns;
  b.value = c < a.v.columns ? __ldcg(a.v(row, head) + c) : 0.0f;
  b.beta = number_of(a.beta, row, head);
  return b;
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// Makes unit vectors, decays and beta of what was brought; k . q.
template <int kKeys>
__device__ __forceinline__ float prepare(const DeltaArgs& a, float rate, Brought<kKeys>& b) {
  float products[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kKeys; ++i)
    products[0] += b.k[i] * b.k[i], products[1] += b.q[i] * b.q[i], products[2] += b.k[i] * b.q[i];
  const float sums = lane_sums<4>(products);  // each of 8 lanes
  constexpr auto kEpsilon = static_cast<float>(DeltaRule::kEpsilon);
  const float by_k = 1.0f / sqrtf(__shfl_sync(kWholeWarp, sums, 0) + kEpsilon);
  const float by_q =
      1.0f / (sqrtf(__shfl_sync(kWholeWarp, sums, 8) + kEpsilon) * sqrtf(static_cast<float>(32 * kKeys)));
  const float key_query = __shfl_sync(kWholeWarp, sums, 16) * by_k * by_q;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    b.k[i] *= by_k, b.q[i] *= by_q;
    b.decay[i] = a.by_channel || i == 0 ? expf(rate * softplus(b.decay[i])) : b.decay[0];
  }
  b.beta = 1.0f / (1.0f + expf(-b.beta));
  return key_query;
}

/// A lane's part of the matrix: kKeys rows of kColumns columns.
template <int kKeys>
struct Part {
  float s[kKeys][kColumns];

  __device__ __forceinline__ void load(const State& state, int layer, int slot, int row, int column) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float* from = state.row(layer, slot, row + i) + column;
      if (state.columns % kColumns == 0) {
#pragma unroll
        for (int c = 0; c < kColumns; c += 4) {
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + c));
          s[i][c] = four.x, s[i][c + 1] = four.y, s[i][c + 2] = four.z, s[i][c + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[i][c] = column + c < state.columns ? __ldcg(from + c) : 0.0f;
      }
    }
  }
  __device__ __forceinline__ void store(const State& state, int layer, int slot, int row, int column) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      float* to = state.row(layer, slot, row + i) + column;
      if (state.columns % kColumns == 0) {
#pragma unroll
        for (int c = 0; c < kColumns; c += 4)
          *reinterpret_cast<float4*>(to + c) = {s[i][c], s[i][c + 1], s[i][c + 2], s[i][c + 3]};
      } else {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (column + c < state.columns) to[c] = s[i][c];
        }
      }
    }
  }

  /// Goes on by a row; what it gives for column lane / 2 - kColumns, in lanes from 2 * kColumns on.
  __device__ __forceinline__ float go_on(const Brought<kKeys>& b, float key_query, int lane) {
    float both[2 * kColumns];  // of k, then of q
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      both[c] = both[kColumns + c] = 0;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        s[i][c] *= b.decay[i];
        both[c] += b.k[i] * s[i][c];
        both[kColumns + c] += b.q[i] * s[i][c];
      }
    }
    const float sum = lane_sums<2 * kColumns>(both);  // of column lane / 2 % kColumns
    const float value = __shfl_sync(kWholeWarp, b.value, lane / 2 % kColumns);
    const float known = __shfl_sync(kWholeWarp, sum, lane % (2 * kColumns));
    const float change = b.beta * (value - known);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float one = __shfl_sync(kWholeWarp, change, 2 * c);
#pragma unroll
      for (int i = 0; i < kKeys; ++i) s[i][c] += b.k[i] * one;
    }
    return sum + key_query * change;
  }
};

template <int kKeys>
__global__ void __launch_bounds__(32 * kWarps)
    delta_rule(const Timestamps timestamps, StepView step, const __grid_constant__ DeltaArgs a) {
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, heads = a.v.heads;
  const int groups = (a.v.columns + kColumns - 1) / kColumns;
  const int unit = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int head = unit / groups, column = unit % groups * kColumns;
  pdl.wait();
  if (head >= heads) return;
  const int key_head = a.in_turns ? head % a.k.heads : head / (heads / a.k.heads);
  const int row = (head * 32 + lane) * kKeys;  // of the matrix
  const float rate = fminf(__ldg(a.rate + head), 0.0f);
  Part<kKeys> part;
  for (int n = static_cast<int>(blockIdx.y); n < step.header->runs; n += static_cast<int>(gridDim.y)) {
    const Run run = step.runs[n];
    if (__ldg(step.positions + run.first) == 0) {
      part = {};
    } else {
      part.load(a.state, a.layer, run.from, row, column);
    }
    Brought<kKeys> next = bring<kKeys>(a, run.first, head, key_head, column, lane);
    for (int r = run.first; r < run.end; ++r) {
      Brought<kKeys> now = next;
      if (r + 1 < run.end) next = bring<kKeys>(a, r + 1, head, key_head, column, lane);
      const float key_query = prepare<kKeys>(a, rate, now);
      const float out = part.go_on(now, key_query, lane);
      const int c = column + lane / 2 - kColumns;
      if (lane >= 2 * kColumns && lane % 2 == 0 && c < a.v.columns) a.out(r, head)[c] = out;
    }
    part.store(a.state, a.layer, run.to, row, column);
  }
}

void launch_delta_rule(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  const DeltaArgs args{c.memory.rows(op.q.id),
                       c.memory.rows(op.k.id),
                       c.memory.rows(op.v.id),
                       c.memory.rows(op.decay.id),
                       c.memory.rows(op.beta.id),
                       c.memory.rows(op.out.id),
                       c.memory.vector(op.rate.id),
                       c.memory.vector(op.bias.id),
                       c.memory.state(op.state.id),
                       op.cache_layer,
                       op.in_turns,
                       op.by_channel(program)};
  const Tensor& v = program[op.v.id];
  const int64_t units = v.heads() * ((v.columns() + kColumns - 1) / kColumns);
  const int64_t runs = std::min<int64_t>(c.rows(v), kMostRuns);
  const LaunchShape shape{
      dim3(static_cast<unsigned>((units + kWarps - 1) / kWarps), static_cast<unsigned>(runs)),
      dim3(32 * kWarps)};
  switch (program[op.k.id].columns() / 32) {
    case 1: return launch(c, delta_rule<1>, shape, c.step, args);
    case 2: return launch(c, delta_rule<2>, shape, c.step, args);
    case 4: return launch(c, delta_rule<4>, shape, c.step, args);
    default: return launch(c, delta_rule<8>, shape, c.step, args);
  }
}

bool serves_delta_rule(const Program& program, const Op& record, const Sizes&) {
  const int64_t keys = program[std::get<DeltaRule>(record.args).k.id].columns();
  return keys == 32 || keys == 64 || keys == 128 || keys == 256;
}

}  // namespace

const Kernel kCausalConv{"causal_conv", serves_causal_conv, launch_causal_conv};
const Kernel kDeltaRule{"delta_rule", serves_delta_rule, launch_delta_rule};

}  // namespace sluice::backend::cuda
