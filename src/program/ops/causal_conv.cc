#include "program/ops/causal_conv.h"

#include <algorithm>
#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

std::string CausalConv::attributes() const {
  return fmt::format("cache layer {}{}", cache_layer, silu ? " silu" : "");
}

void CausalConv::check(const Program& p) const {
  const int64_t columns = p[in.id].columns(), taps = p[weight.id].columns();
  expect_shape(p, "in", in.id, {kStepRows, 1, columns});
  expect_shape(p, "out", out.id, {kStepRows, 1, columns});
  expect_weight(p, "weight", weight.id);
  expect_shape(p, "weight", weight.id, {1, columns, taps});
  if (taps < 2) fail("weight: {} taps, expected 2 or more", taps);
  expect_type(p, "state", state.id, quant::Type::F32);
  expect_shape(p, "state", state.id, {p[state.id].shape[0], taps - 1, columns});
  if (p[state.id].kind != Kind::State) fail("state: {} is no state", p[state.id].name);
  if (cache_layer < 0 || cache_layer >= p[state.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

Cost CausalConv::cost(const Program& p, const StepShape& shape) const {
  const Tensor& kept = p[state.id];
  const double moved =
      p.bytes(state.id, shape.sequences * static_cast<double>(kept.shape[1] * kept.shape[2]));
  return {bytes_of(p, shape, {in.id, weight.id}) + moved, p.bytes(out.id, shape) + moved,
          2 * p.elements(in.id, shape) * static_cast<double>(p[weight.id].columns())};
}

void CausalConv::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t columns = p[in.id].columns(), taps = p[weight.id].columns(), before = taps - 1;
  std::vector<float> weights(static_cast<size_t>(columns * taps));
  for (int64_t c = 0; c < columns; ++c) memory.weight_row(weight.id, 0, c, weights.data() + c * taps);
  for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
    end = input.end_of_sequence(first);
    const StateSlots slots = input.states[static_cast<size_t>(input.sequences[static_cast<size_t>(first)])];
    const bool begins = input.positions[static_cast<size_t>(first)] == 0;
    // Row i of those kept before the step, then of the step's own.
    const auto number = [&](int64_t i, int64_t c) {
      if (i >= before) return memory.row(in.id, first + i - before)[c];
      return begins ? 0.0f : memory.state_row(state.id, cache_layer, slots.from, i)[c];
    };
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = first; r < end; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < taps; ++k)
          sum += static_cast<double>(weights[static_cast<size_t>(c * taps + k)]) *
                 static_cast<double>(number(r - first + k, c));
        memory.row(out.id, r)[c] = static_cast<float>(silu ? sum / (1 + std::exp(-sum)) : sum);
      }
      for (int64_t i = 0; i < before; ++i)
        memory.state_row(state.id, cache_layer, slots.to, i)[c] = number(end - first + i, c);
    }
  }
}

std::vector<OpCase> CausalConv::cases() {
  const auto build = [](int64_t columns, int64_t taps, bool silu = false) {
    return [=](Builder& b) {
      const TensorId state = b.state("state", 2, taps - 1, columns);
      const TensorId x = b.activation("x", kStepRows, 1, columns);
      b.causal_conv(x, b.weight("weight", quant::Type::F32, 1, columns, taps), state, 1, silu);
    };
  };
  return {{"2048 columns 4 taps rows 1", 1, build(2048, 4)},
          {"2048 columns 4 taps rows 70", 70, build(2048, 4)},
          {"30 columns 3 taps rows 5", 5, build(30, 3)},
          {"2100 columns 4 taps, silu, rows 1", 1, build(2100, 4, true)},
          {"2100 columns 4 taps, silu, rows 9", 9, build(2100, 4, true)}};
}

}  // namespace sluice::program
