#include "program/ops/scale.h"

#include "program/ops/checks.h"

namespace sluice::program {

int64_t Scale::each(const Program& p) const {
  const int64_t numbers = p[in.id].heads() * p[in.id].columns();
  return ids ? numbers / p[ids.id].columns() : numbers;
}

void Scale::check(const Program& p) const {
  const Tensor& tensor = p[in.id];
  expect_weight(p, "scale", scale.id);
  expect_shape(p, "scale", scale.id, {1, 1, ids ? p[scale.id].columns() : 1});
  expect_shape(p, "out", out.id, tensor.shape);
  if (!ids) return;
  const int64_t used = p[ids.id].columns();
  expect_type(p, "ids", ids.id, quant::Type::I32);
  expect_shape(p, "ids", ids.id, {kStepRows, 1, used});
  if (tensor.heads() * tensor.columns() % used != 0) fail("in: {} is not of {} experts", tensor.name, used);
}

Cost Scale::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, ids.id, scale.id}), p.bytes(out.id, shape), p.elements(out.id, shape)};
}

void Scale::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t heads = p[in.id].heads(), columns = p[in.id].columns(), of_one = each(p);
  std::vector<float> scales(static_cast<size_t>(p[scale.id].columns()));
  memory.weight_row(scale.id, 0, 0, scales.data());
  for (int64_t r = 0; r < Program::rows(p[in.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < columns; ++c) {
        const int32_t of = ids ? memory.int_row(ids.id, r)[(h * columns + c) / of_one] : 0;
        memory.row(out.id, r, h)[c] = memory.row(in.id, r, h)[c] * scales[static_cast<size_t>(of)];
      }
    }
  }
}

std::vector<OpCase> Scale::cases() {
  const auto build = [](int64_t heads, int64_t columns) {
    return [=](Builder& b) {
      b.scale(b.activation("x", kStepRows, heads, columns), b.weight("scale", quant::Type::F32, 1, 1, 1));
    };
  };
  // A head an expert, or a column.
  const auto build_experts = [](int64_t heads, int64_t columns) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Sigmoid};
      route.logits.id = b.activation("logits", kStepRows, 1, 16);
      b.route(route, 4);
      b.scale(b.activation("x", kStepRows, heads, columns), b.weight("scale", quant::Type::F32, 1, 1, 16),
              route.ids.id);
    };
  };
  return {{"2048", 5, build(1, 2048)},
          {"12x96", 5, build(12, 96)},
          {"4 of 16x250", 5, build_experts(4, 250)},
          {"4 of 16 weights", 5, build_experts(1, 4)}};
}

}  // namespace sluice::program
