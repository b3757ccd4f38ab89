#include "program/ops/norm_gate_up.h"

#include "program/ops/checks.h"

namespace sluice::program {

std::string NormGateUp::attributes() const { return fmt::format("epsilon {:g}", epsilon); }

void NormGateUp::check(const Program& p) const {
  expect_weight(p, "norm", norm.id);
  expect_shape(p, "norm", norm.id, {1, 1, p[in.id].columns()});
  if (p[in.id].heads() != 1) fail("in: {} has heads", p[in.id].name);
  // The normed row is as the row is.
  GateUp{in, gate_up.gate, gate_up.up, gate_up.out}.check(p);
}

Cost NormGateUp::cost(const Program& p, const StepShape& shape) const {
  Cost cost = GateUp{in, gate_up.gate, gate_up.up, gate_up.out}.cost(p, shape);
  cost += Cost{p.bytes(norm.id, shape), 0, 4 * p.elements(in.id, shape)};
  return cost;
}

void NormGateUp::expand(Builder& b) const {
  b.emit(GateUp{{b.rms_norm(in.id, norm.id, epsilon)}, gate_up.gate, gate_up.up, gate_up.out});
}

std::vector<OpCase> NormGateUp::cases() {
  const auto build = [](quant::Type type, int64_t outputs, int64_t columns) {
    return [=](Builder& b) {
      NormGateUp op{.in = {b.activation("x", kStepRows, 1, columns)},
                    .norm = {b.weight("norm", quant::Type::F32, 1, 1, columns)}};
      op.gate_up.gate.id = b.weight("gate", type, 1, outputs, columns);
      op.gate_up.up.id = b.weight("up", type, 1, outputs, columns);
      op.gate_up.out.id = b.activation("out", kStepRows, 1, outputs);
      b.emit(op);
    };
  };
  // Outputs are products of two sums, a few of them far larger than the rest: an error is told by many.
  using quant::Type;
  return {{"Q4_0 1024x2048 rows 1", 1, build(Type::Q4_0, 1024, 2048)},
          {"Q4_0 6144x2048 rows 1", 1, build(Type::Q4_0, 6144, 2048)},
          {"Q6_K 1500x512 rows 1", 1, build(Type::Q6_K, 1500, 512)},
          {"F16 64x256 rows 1", 1, build(Type::F16, 64, 256)},
          {"Q4_K 1024x768 rows 5", 5, build(Type::Q4_K, 1024, 768)},
          {"Q4_K 192x512 rows 150", 150, build(Type::Q4_K, 192, 512)}};
}

}  // namespace sluice::program
