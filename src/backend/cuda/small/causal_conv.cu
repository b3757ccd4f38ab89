// causal_conv: every column of a sequence's rows with the taps of a short convolution. A state has the rows
// before a step's first ones.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;
constexpr int kConvRows = 8;             ///< a block's
constexpr int64_t kConvRowsAlone = 128;  ///< of a step up to which every row has a block: most are sequences
constexpr int kMostTaps = 8;

struct ConvArgs {
  Rows<float> in, out;
  Matrix weight;
  State state;
  int layer;
  bool silu;
};

/// A thread has a column of kRows rows, and the numbers before them. Fewer taps than kTaps: the first are 0.
/// Whoever has a sequence's last row writes the state behind it.
template <int kTaps, int kRows>
__global__ void __launch_bounds__(kThreads)
    causal_conv(const Timestamps timestamps, StepView step, const __grid_constant__ ConvArgs a) {
  const PdlLink pdl(timestamps);
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), taps = a.weight.columns;
  const int missing = kTaps - taps;
  float weights[kTaps];
#pragma unroll
  for (int k = 0; k < kTaps; ++k)
    weights[k] = c < a.in.columns && k >= missing
                     ? float_number(a.weight.type, a.weight.codes, a.weight.row(0, c) * taps + k - missing)
                     : 0.0f;
  pdl.wait();
  if (c >= a.in.columns) return;
  const int first = static_cast<int>(blockIdx.y) * kRows, rows = step.header->rows;
  float in[kRows], before[kTaps - 1];
#pragma unroll
  for (int i = 0; i < kRows; ++i) in[i] = first + i < rows ? __ldcg(a.in(first + i) + c) : 0.0f;
  Run run{};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = first + i;
    if (r >= rows) break;
    if (i == 0 || r == run.end) {
      run = step.runs[__ldg(step.run_of + r)];
      const bool begins = __ldg(step.positions + run.first) == 0;
#pragma unroll
      for (int k = 0; k < kTaps - 1; ++k) {
        const int row = r - (kTaps - 1) + k;  // of the step; what lies before its run's first is the state's
        const int kept = row - run.first + taps - 1;
        before[k] = row >= run.first     ? __ldcg(a.in(row) + c)
                    : begins || kept < 0 ? 0.0f
                                         : __ldcg(a.state.row(a.layer, run.from, kept) + c);
      }
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kTaps - 1; ++k) sum += weights[k] * before[k];
    sum += weights[kTaps - 1] * in[i];
    a.out(r)[c] = a.silu ? sum / (1.0f + expf(-sum)) : sum;
#pragma unroll
    for (int k = 0; k < kTaps - 2; ++k) before[k] = before[k + 1];
    before[kTaps - 2] = in[i];
    if (r + 1 != run.end) continue;
#pragma unroll
    for (int k = 0; k < kTaps - 1; ++k)
      if (k >= missing) a.state.row(a.layer, run.to, k - missing)[c] = before[k];
  }
}

void launch_causal_conv(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<CausalConv>(record.args);
  const ConvArgs args{c.memory.rows(op.in.id),     c.memory.rows(op.out.id), c.memory.matrix(op.weight.id),
                      c.memory.state(op.state.id), op.cache_layer,           op.silu};
  const auto columns = static_cast<unsigned>(program[op.in.id].columns());
  const int64_t rows = c.rows(program[op.in.id]);
  const bool alone = rows <= kConvRowsAlone, few = args.weight.columns <= 4;
  const LaunchShape shape{dim3((columns + kThreads - 1) / kThreads,
                               static_cast<unsigned>(alone ? rows : (rows + kConvRows - 1) / kConvRows)),
                          dim3(kThreads)};
  launch(c,
         alone ? (few ? causal_conv<4, 1> : causal_conv<kMostTaps, 1>)
               : (few ? causal_conv<4, kConvRows> : causal_conv<kMostTaps, kConvRows>),
         shape, c.step, args);
}

bool serves_causal_conv(const Program& program, const Op& record, const Sizes&) {
  const Tensor& weight = program[std::get<CausalConv>(record.args).weight.id];
  return quant::type_info(weight.type).block == 1 && weight.columns() <= kMostTaps;
}

}  // namespace

const Kernel kCausalConv{"causal_conv", serves_causal_conv, launch_causal_conv};

}  // namespace sluice::backend::cuda
