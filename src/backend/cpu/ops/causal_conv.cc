// causal_conv: a worker takes some of the columns of all rows.
#include <algorithm>
#include <limits>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr int64_t kColumns = 16;  // a cache line of them

/// silu is SwiGLU of an up value that is 0, shifted by 1.
constexpr SwigluForm kSilu{1, std::numeric_limits<float>::infinity(), 1};

/// The weights of `count` columns from `first` on, tap after tap.
void take_weights(const Weight& weight, int64_t first, int64_t count, float* row, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    weight.decode_row(0, first + i, row);
    for (int64_t k = 0; k < weight.columns; ++k) out[k * count + i] = row[k];
  }
}

void causal_conv(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<CausalConv>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const State state = c.memory.state(op.state.id);
  const int64_t taps = p[op.weight.id].columns(), before = taps - 1;
  const Slice columns = c.slice(in.columns, kColumns);
  const int64_t count = columns.last - columns.first;
  if (count <= 0) return;
  float *weights = c.scratch(), *zeros = weights + taps * in.columns, *row = zeros + in.columns;
  take_weights(c.memory.weight(op.weight.id), columns.first, count, row, weights);
  std::fill_n(zeros, count, 0.0f);
  for (int64_t first = 0, end = 0; first < c.input.rows(); first = end) {
    end = c.input.end_of_sequence(first);
    const StateSlots slots =
        c.input.states[static_cast<size_t>(c.input.sequences[static_cast<size_t>(first)])];
    const bool begins = c.input.positions[static_cast<size_t>(first)] == 0;
    // Row i of those kept before the step, then of the step's own.
    const auto numbers = [&](int64_t i) -> const float* {
      if (i >= before) return in(first + i - before) + columns.first;
      return begins ? zeros : state.row(op.cache_layer, slots.from, i) + columns.first;
    };
    for (int64_t r = first; r < end; ++r) {
      float* sums = out(r) + columns.first;
      std::fill_n(sums, count, 0.0f);
      for (int64_t k = 0; k < taps; ++k) {
        const float *x = numbers(r - first + k), *w = weights + k * count;
        for (int64_t i = 0; i < count; ++i) sums[i] += w[i] * x[i];
      }
      if (op.silu) small_kernels(c.isa).swiglu(sums, zeros, kSilu, count, sums);
    }
    for (int64_t i = 0; i < before; ++i)
      std::copy_n(numbers(end - first + i), count, state.row(op.cache_layer, slots.to, i) + columns.first);
  }
}

int64_t causal_conv_scratch(const Program& p, const Op& record, const CompileOptions&) {
  const auto& op = std::get<CausalConv>(record.args);
  const int64_t taps = p[op.weight.id].columns();
  return (taps + 1) * p[op.in.id].columns() + taps;
}

}  // namespace

const Kernel kCausalConv{"causal_conv", Share::Other, causal_conv, causal_conv_scratch};

}  // namespace sluice::backend::cpu
