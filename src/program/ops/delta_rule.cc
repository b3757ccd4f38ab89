#include "program/ops/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {
namespace {

int64_t row_numbers(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

/// log(1 + e^x), which no large x makes infinite.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// Number i of a row, its heads one after the other.
double number_of(RefMemory& memory, TensorId id, int64_t row, int64_t i) {
  const int64_t columns = memory.program()[id].columns();
  return static_cast<double>(memory.row(id, row, i / columns)[i % columns]);
}

std::vector<float> vector_of(const RefMemory& memory, TensorId id) {
  std::vector<float> values(static_cast<size_t>(memory.program()[id].columns()));
  memory.weight_row(id, 0, 0, values.data());
  return values;
}

/// What a row brings for one head.
struct HeadRow {
  std::vector<double> q, k, decay;  // [key columns]
  double beta;
};

/// x over its length.
std::vector<double> unit(const float* x, int64_t count) {
  double squares = DeltaRule::kEpsilon;
  for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  std::vector<double> values(x, x + count);
  for (double& value : values) value /= std::sqrt(squares);
  return values;
}

}  // namespace

int64_t DeltaRule::key_head(const Program& p, int64_t head) const {
  const int64_t key_heads = p[k.id].heads();
  return in_turns ? head % key_heads : head / (p[v.id].heads() / key_heads);
}

bool DeltaRule::by_channel(const Program& p) const { return row_numbers(p[decay.id]) != p[v.id].heads(); }

std::string DeltaRule::attributes() const {
  return fmt::format("cache layer {}{}", cache_layer, in_turns ? " heads in turns" : "");
}

void DeltaRule::check(const Program& p) const {
  const int64_t key_heads = p[k.id].heads(), keys = p[k.id].columns();
  const int64_t heads = p[v.id].heads(), values = p[v.id].columns();
  expect_shape(p, "k", k.id, {kStepRows, key_heads, keys});
  expect_shape(p, "q", q.id, {kStepRows, key_heads, keys});
  expect_shape(p, "v", v.id, {kStepRows, heads, values});
  expect_shape(p, "out", out.id, {kStepRows, heads, values});
  check_shapes(p, {key_heads, heads, keys, values});
}

void DeltaRule::check_shapes(const Program& p, const Shape& shape) const {
  const auto [key_heads, heads, keys, values] = shape;
  if (heads % key_heads != 0) fail("{} heads do not share {} heads of keys", heads, key_heads);
  const int64_t decays = row_numbers(p[decay.id]);
  if (decays != heads && decays != heads * keys)
    fail("decay: {} numbers a row, expected {} or {}", decays, heads, heads * keys);
  if (row_numbers(p[beta.id]) != heads)
    fail("beta: {} numbers a row, expected {}", row_numbers(p[beta.id]), heads);
  expect_weight(p, "rate", rate.id);
  expect_shape(p, "rate", rate.id, {1, 1, heads});
  expect_weight(p, "bias", bias.id);
  expect_shape(p, "bias", bias.id, {1, 1, decays});
  expect_type(p, "state", state.id, quant::Type::F32);
  expect_shape(p, "state", state.id, {p[state.id].shape[0], heads * keys, values});
  if (p[state.id].kind != Kind::State) fail("state: {} is no state", p[state.id].name);
  if (cache_layer < 0 || cache_layer >= p[state.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

Cost DeltaRule::cost(const Program& p, const StepShape& shape) const {
  Cost cost = cost_of_states(p, shape);
  cost += {bytes_of(p, shape, {q.id, k.id, v.id}), p.bytes(out.id, shape), 0};
  return cost;
}

Cost DeltaRule::cost_of_states(const Program& p, const StepShape& shape) const {
  const auto kept = static_cast<double>(p[state.id].shape[1] * p[state.id].shape[2]);
  const double moved = p.bytes(state.id, shape.sequences * kept);
  return {bytes_of(p, shape, {decay.id, beta.id, rate.id, bias.id}) + moved, moved, 7 * shape.rows * kept};
}

void DeltaRule::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t heads = p[v.id].heads(), keys = p[k.id].columns(), values = p[v.id].columns();
  const bool channels = by_channel(p);
  const std::vector<float> rates = vector_of(memory, rate.id), biases = vector_of(memory, bias.id);
  const auto head_row = [&](int64_t r, int64_t h) {
    HeadRow row{unit(memory.row(q.id, r, key_head(p, h)), keys),
                unit(memory.row(k.id, r, key_head(p, h)), keys),
                std::vector<double>(static_cast<size_t>(keys)),
                1 / (1 + std::exp(-number_of(memory, beta.id, r, h)))};
    for (double& number : row.q) number /= std::sqrt(static_cast<double>(keys));
    const double negative = std::min(static_cast<double>(rates[static_cast<size_t>(h)]), 0.0);
    for (int64_t i = 0; i < keys; ++i) {
      const int64_t at = channels ? h * keys + i : h;
      const double x =
          number_of(memory, decay.id, r, at) + static_cast<double>(biases[static_cast<size_t>(at)]);
      row.decay[static_cast<size_t>(i)] = std::exp(negative * softplus(x));
    }
    return row;
  };
  std::vector<double> matrix(static_cast<size_t>(keys * values));
  for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
    end = input.end_of_sequence(first);
    const StateSlots slots = input.states[static_cast<size_t>(input.sequences[static_cast<size_t>(first)])];
    const bool begins = input.positions[static_cast<size_t>(first)] == 0;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < keys; ++i) {
        const float* from = memory.state_row(state.id, cache_layer, slots.from, h * keys + i);
        for (int64_t c = 0; c < values; ++c)
          matrix[static_cast<size_t>(i * values + c)] = begins ? 0 : static_cast<double>(from[c]);
      }
      for (int64_t r = first; r < end; ++r) {
        const HeadRow row = head_row(r, h);
        for (int64_t c = 0; c < values; ++c) {
          double known = 0, sum = 0;
          const auto number = [&](int64_t i) -> double& {
            return matrix[static_cast<size_t>(i * values + c)];
          };
          for (int64_t i = 0; i < keys; ++i) {
            number(i) *= row.decay[static_cast<size_t>(i)];
            known += row.k[static_cast<size_t>(i)] * number(i);
          }
          const double change = row.beta * (static_cast<double>(memory.row(v.id, r, h)[c]) - known);
          for (int64_t i = 0; i < keys; ++i) {
            number(i) += row.k[static_cast<size_t>(i)] * change;
            sum += row.q[static_cast<size_t>(i)] * number(i);
          }
          memory.row(out.id, r, h)[c] = static_cast<float>(sum);
        }
      }
      for (int64_t i = 0; i < keys; ++i) {
        float* to = memory.state_row(state.id, cache_layer, slots.to, h * keys + i);
        for (int64_t c = 0; c < values; ++c)
          to[c] = static_cast<float>(matrix[static_cast<size_t>(i * values + c)]);
      }
    }
  }
}

std::vector<OpCase> DeltaRule::cases() {
  struct Shape {
    int64_t key_heads, heads, keys, values;
    bool in_turns = false, channels = false;
  };
  const auto build = [](Shape s) {
    return [s](Builder& b) {
      // As one convolution gives them: queries, keys, values.
      const int64_t key_columns = s.key_heads * s.keys;
      const TensorId x = b.activation("x", kStepRows, 1, 2 * key_columns + s.heads * s.values);
      const int64_t decays = s.channels ? s.heads * s.keys : s.heads;
      // Of heads that stand together, both numbers lie side by side.
      const TensorId both =
          b.activation("beta_and_decay", kStepRows, s.key_heads, 2 * (s.heads / s.key_heads));
      const int64_t each = s.heads / s.key_heads;
      DeltaRule op{.q = {b.heads(x, "q", 0, s.key_heads, s.keys)},
                   .k = {b.heads(x, "k", key_columns, s.key_heads, s.keys)},
                   .v = {b.heads(x, "v", 2 * key_columns, s.heads, s.values)}};
      op.beta = {b.columns(both, "beta", 0, each)};
      op.decay = {s.channels ? b.activation("decay", kStepRows, 1, decays)
                             : b.columns(both, "decay", each, each)};
      op.rate = {b.weight("rate", quant::Type::F32, 1, 1, s.heads)};
      op.bias = {b.weight("bias", quant::Type::F32, 1, 1, decays)};
      op.state = {b.state("state", 2, s.heads * s.keys, s.values)};
      op.cache_layer = 1;
      op.in_turns = s.in_turns;
      b.delta_rule(op);
    };
  };
  return {{"4 of 2 heads 128x128 rows 1", 1, build({2, 4, 128, 128})},
          {"4 of 2 heads 128x128 rows 70", 70, build({2, 4, 128, 128})},
          {"6 of 3 heads 128x128, in turns, rows 9", 9, build({3, 6, 128, 128, true})},
          {"3 heads 128x128 by channel rows 7", 7, build({3, 3, 128, 128, false, true})},
          {"4 of 2 heads 64x96 rows 7", 7, build({2, 4, 64, 96})},
          {"2 of 1 heads 128x64 rows 129", 129, build({1, 2, 128, 64})},
          {"4 of 2 heads 64x32, in turns, rows 300", 300, build({2, 4, 64, 32, true})},
          {"2 heads 32x41 by channel rows 70", 70, build({2, 2, 32, 41, false, true})},
          {"4 of 2 heads 128x64, in turns, by channel rows 65", 65, build({2, 4, 128, 64, true, true})},
          {"2 heads 128x128 by channel rows 128", 128, build({2, 2, 128, 128, false, true})},
          {"4 of 2 heads 64x32 by channel rows 300", 300, build({2, 4, 64, 32, false, true})}};
}

}  // namespace sluice::program
