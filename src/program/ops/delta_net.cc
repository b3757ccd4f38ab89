#include "program/ops/delta_net.h"

#include "program/ops/checks.h"

namespace sluice::program {

DeltaRule::Shape DeltaNet::shape(const Program& p) const {
  const Tensor &gate = p[norm.gate.id], &state = p[rule.state.id];
  const int64_t heads = gate.heads(), keys = state.shape[1] / heads;
  const int64_t of_keys = p[conv.in.id].columns() - heads * gate.columns();  // and of queries
  return {keys > 0 ? of_keys / (2 * keys) : 0, heads, keys, gate.columns()};
}

void DeltaNet::check(const Program& p) const {
  // What goes in has the shape of what comes out, which is not in the Program.
  CausalConv first = conv;
  first.out.id = conv.in.id;
  first.check(p);
  const DeltaRule::Shape s = shape(p);
  if (s.keys < 1 || s.key_heads < 1) fail("in: {} columns hold no queries", p[conv.in.id].columns());
  expect_shape(p, "in", conv.in.id, {kStepRows, 1, 2 * s.key_heads * s.keys + s.heads * s.values});
  rule.check_shapes(p, s);
  if (conv.cache_layer != rule.cache_layer)
    fail("layers {} and {} of the states, expected the same", conv.cache_layer, rule.cache_layer);
  GatedNorm last = norm;
  last.in = norm.gate;
  last.check(p);
}

Cost DeltaNet::cost(const Program& p, const StepShape& step) const {
  CausalConv first = conv;
  first.out.id = conv.in.id;
  GatedNorm last = norm;
  last.in = norm.gate;
  Cost cost = first.cost(p, step);
  cost += rule.cost_of_states(p, step);
  cost += last.cost(p, step);
  // What one hands to the next is neither written nor read.
  cost.bytes_written -= p.bytes(conv.in.id, step);
  cost.bytes_read -= p.bytes(norm.gate.id, step);
  return cost;
}

void DeltaNet::expand(Builder& b) const {
  const DeltaRule::Shape s = shape(b.program());
  const TensorId mixed =
      b.causal_conv(conv.in.id, conv.weight.id, conv.state.id, conv.cache_layer, conv.silu);
  DeltaRule middle = rule;
  middle.q = {b.heads(mixed, "q", 0, s.key_heads, s.keys)};
  middle.k = {b.heads(mixed, "k", s.key_heads * s.keys, s.key_heads, s.keys)};
  middle.v = {b.heads(mixed, "v", 2 * s.key_heads * s.keys, s.heads, s.values)};
  GatedNorm last = norm;
  last.in = {b.delta_rule(middle)};
  b.emit(last);
}

std::vector<OpCase> DeltaNet::cases() {
  const auto build = [](DeltaRule::Shape s, bool in_turns, GateForm form) {
    return [=](Builder& b) {
      const int64_t columns = 2 * s.key_heads * s.keys + s.heads * s.values;
      const int64_t each = s.heads / s.key_heads;
      const TensorId both = b.activation("beta_and_decay", kStepRows, s.key_heads, 2 * each);
      DeltaNet op;
      op.conv = {.in = {b.activation("x", kStepRows, 1, columns)},
                 .weight = {b.weight("conv", quant::Type::F32, 1, columns, 4)},
                 .state = {b.state("rows", 2, 3, columns)},
                 .cache_layer = 1,
                 .silu = true};
      op.rule.beta = {b.columns(both, "beta", 0, each)};
      op.rule.decay = {b.columns(both, "decay", each, each)};
      op.rule.rate = {b.weight("rate", quant::Type::F32, 1, 1, s.heads)};
      op.rule.bias = {b.weight("bias", quant::Type::F32, 1, 1, s.heads)};
      op.rule.state = {b.state("state", 2, s.heads * s.keys, s.values)};
      op.rule.cache_layer = 1, op.rule.in_turns = in_turns;
      op.norm = {.weight = {b.weight("norm", quant::Type::F32, 1, 1, s.values)},
                 .gate = {b.activation("gate", kStepRows, s.heads, s.values)},
                 .out = {b.activation("out", kStepRows, s.heads, s.values)},
                 .epsilon = 1e-6f,
                 .form = form};
      b.emit(op);
    };
  };
  constexpr DeltaRule::Shape kFour{2, 4, 128, 128};
  return {{"4 of 2 heads 128x128 rows 1", 1, build(kFour, false, GateForm::Silu)},
          {"4 of 2 heads 128x128, in turns, rows 3", 3, build(kFour, true, GateForm::Silu)},
          {"4 of 2 heads 128x128, sigmoid, rows 8", 8, build(kFour, false, GateForm::Sigmoid)},
          {"4 of 2 heads 128x128 rows 70", 70, build(kFour, false, GateForm::Silu)},
          {"6 of 3 heads 64x64 rows 7", 7, build({3, 6, 64, 64}, true, GateForm::Silu)},
          {"2 heads 32x41 rows 5", 5, build({2, 2, 32, 41}, false, GateForm::Silu)}};
}

}  // namespace sluice::program
