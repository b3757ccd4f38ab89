#include "program/ops/expert_bias.h"

#include "program/ops/checks.h"

namespace sluice::program {

void ExpertBias::check(const Program& p) const {
  const int64_t used = p[ids.id].columns(), columns = p[in.id].columns();
  expect_weight(p, "bias", bias.id);
  expect_shape(p, "bias", bias.id, {1, p[bias.id].shape[1], columns});
  expect_type(p, "ids", ids.id, quant::Type::I32);
  expect_shape(p, "ids", ids.id, {kStepRows, 1, used});
  expect_shape(p, "in", in.id, {kStepRows, used, columns});
  expect_shape(p, "out", out.id, p[in.id].shape);
}

Cost ExpertBias::cost(const Program& p, const StepShape& shape) const {
  const auto used = static_cast<double>(p[ids.id].columns());
  return {bytes_of(p, shape, {in.id, ids.id}) + bias_bytes(p, bias.id, used, shape), p.bytes(out.id, shape),
          p.elements(out.id, shape)};
}

void ExpertBias::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t columns = p[in.id].columns(), used = p[ids.id].columns();
  std::vector<float> b(static_cast<size_t>(columns));
  for (int64_t r = 0; r < input.rows(); ++r) {
    for (int64_t k = 0; k < used; ++k) {
      memory.weight_row(bias.id, 0, memory.int_row(ids.id, r)[k], b.data());
      for (int64_t c = 0; c < columns; ++c)
        memory.row(out.id, r, k)[c] = memory.row(in.id, r, k)[c] + b[static_cast<size_t>(c)];
    }
  }
}

std::vector<OpCase> ExpertBias::cases() {
  return {{"4 of 16x250", 5, [](Builder& b) {
             Route route{.gating = Gating::Sigmoid};
             route.logits.id = b.activation("logits", kStepRows, 1, 16);
             b.route(route, 4);
             const TensorId x = b.activation("x", kStepRows, 4, 250);
             const TensorId out = b.activation("out", kStepRows, 4, 250);
             b.emit(ExpertBias{{x}, {b.weight("bias", quant::Type::F32, 1, 16, 250)}, {route.ids.id}, {out}});
           }}};
}

}  // namespace sluice::program
