// causal_conv: a worker takes some of the columns of all rows, so many at a time that what a row shares with
// the next ones is still near.
#include <algorithm>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr int64_t kColumns = 16;       // a cache line of them
constexpr int64_t kConvColumns = 512;  // columns

/// The weights of some columns, tap after tap.
void take_weights(const Weight& weight, Slice columns, const SmallKernels& kernels, float* room, float* out) {
  const int64_t count = columns.last - columns.first;
  const float* numbers = room;
  if (weight.type == quant::Type::F32 && weight.row_bytes == weight.bytes_of_row()) {
    numbers = reinterpret_cast<const float*>(weight.row(0, columns.first));
  } else {
    for (int64_t i = 0; i < count; ++i) weight.decode_row(0, columns.first + i, room + i * weight.columns);
  }
  kernels.tap_after_tap(numbers, weight.columns, count, out);
}

/// Some columns of the rows of sequences.
class Convolution {
 public:
  Convolution(const Program& p, const CausalConv& op, const Context& c, Slice columns)
      : op_(op),
        in_(c.memory.rows(op.in.id)),
        out_(c.memory.rows(op.out.id)),
        state_(c.memory.state(op.state.id)),
        kernels_(small_kernels(c.isa)),
        first_(columns.first),
        count_(columns.last - columns.first),
        taps_(p[op.weight.id].columns()),
        weights_(c.scratch()),
        zeros_(weights_ + taps_ * kConvColumns) {
    std::fill_n(zeros_, kConvColumns, 0.0f);
    take_weights(c.memory.weight(op.weight.id), columns, kernels_, zeros_ + kConvColumns, weights_);
  }

  static int64_t scratch(int64_t taps) { return (2 * taps + 1) * kConvColumns; }

  /// The rows [first, end), of one sequence.
  void run(StateSlots slots, bool begins, int64_t first, int64_t end) const {
    const int64_t before = taps_ - 1;
    const auto state = [&](int64_t slot, int64_t i) { return state_.row(op_.cache_layer, slot, i) + first_; };
    ConvRow row{.weights = weights_, .weights_stride = count_, .taps = taps_, .silu = op_.silu};
    row.step_stride = in_.row_stride, row.state_stride = begins ? 0 : state_.columns;
    const auto taps_from = [&](int64_t i) {  // i: of the rows kept before the step, then of the step's own
      row.kept = std::max(before - i, int64_t{0});
      row.state = begins ? zeros_ : state(slots.from, std::min(i, before - 1));
      row.step = in_(first + std::max(i - before, int64_t{0})) + first_;
    };
    for (int64_t r = first; r < end; ++r) {
      taps_from(r - first);
      kernels_.convolve(row, count_, out_(r) + first_);
    }
    taps_from(end - first);
    for (int64_t i = 0; i < before; ++i) std::copy_n(row.tap(i), count_, state(slots.to, i));
  }

 private:
  const CausalConv& op_;
  Rows<float> in_, out_;
  State state_;
  const SmallKernels& kernels_;
  int64_t first_, count_, taps_;  // columns; rows that a sum has
  float *weights_, *zeros_;
};

void causal_conv(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<CausalConv>(record.args);
  const Slice columns = c.slice(p[op.in.id].columns(), kColumns);
  for (int64_t at = columns.first; at < columns.last; at += kConvColumns) {
    const Convolution some(p, op, c, {at, std::min(columns.last, at + kConvColumns)});
    for (int64_t first = 0, end = 0; first < c.input.rows(); first = end) {
      end = c.input.end_of_sequence(first);
      some.run(c.input.states[static_cast<size_t>(c.input.sequences[static_cast<size_t>(first)])],
               c.input.positions[static_cast<size_t>(first)] == 0, first, end);
    }
  }
}

int64_t causal_conv_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return Convolution::scratch(p[std::get<CausalConv>(record.args).weight.id].columns());
}

}  // namespace

const Kernel kCausalConv{"causal_conv", Share::Other, causal_conv, causal_conv_scratch};

}  // namespace sluice::backend::cpu
