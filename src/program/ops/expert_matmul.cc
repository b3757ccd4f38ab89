#include "program/ops/expert_matmul.h"

#include <map>
#include <vector>

#include "program/ops/checks.h"

namespace sluice::program {

void ExpertMatmul::check(const Program& p) const {
  expect_weight(p, "weight", weight.id);
  const auto& [experts, outputs, inputs] = p[weight.id].shape;
  const int64_t used = p[ids.id].columns();
  expect_type(p, "ids", ids.id, quant::Type::I32);
  expect_shape(p, "ids", ids.id, {kStepRows, 1, used});
  expect_shape(p, "in", in.id, {kStepRows, p[in.id].heads() == 1 ? 1 : used, inputs});
  expect_shape(p, "out", out.id, {kStepRows, used, outputs});
}

Cost ExpertMatmul::cost(const Program& p, const StepShape& shape) const {
  const auto used = static_cast<double>(p[ids.id].columns());
  const auto& [experts, outputs, inputs] = p[weight.id].shape;
  return {bytes_of(p, shape, {in.id, ids.id}) + expert_bytes(p, weight.id, used, shape),
          p.bytes(out.id, shape), 2 * shape.rows * used * static_cast<double>(outputs * inputs)};
}

void ExpertMatmul::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t outputs = p[weight.id].shape[1], inputs = p[weight.id].columns(), used = p[ids.id].columns();
  struct Pair {
    const float* in;
    float* out;
  };
  std::map<int32_t, std::vector<Pair>> of_experts;  // so a weight is decoded once for all rows
  for (int64_t r = 0; r < input.rows(); ++r) {
    for (int64_t k = 0; k < used; ++k)
      of_experts[memory.int_row(ids.id, r)[k]].push_back(
          {memory.row(in.id, r, p[in.id].heads() == 1 ? 0 : k), memory.row(out.id, r, k)});
  }
  std::vector<float> w(static_cast<size_t>(inputs));
  for (const auto& [expert, pairs] : of_experts) {
    for (int64_t n = 0; n < outputs; ++n) {
      memory.weight_row(weight.id, expert, n, w.data());
      for (const Pair& pair : pairs) pair.out[n] = ref_dot(pair.in, w.data(), inputs);
    }
  }
}

std::vector<OpCase> ExpertMatmul::cases() {
  return {{"Q4_0 4 of 16 256x512", 3, [](Builder& b) {
             Route route{.gating = Gating::Sigmoid};
             route.logits.id = b.activation("logits", kStepRows, 1, 16);
             b.route(route, 4);
             const TensorId x = b.activation("x", kStepRows, 1, 512);
             const TensorId out = b.activation("out", kStepRows, 4, 256);
             b.emit(ExpertMatmul{
                 {x}, {b.weight("weight", quant::Type::Q4_0, 16, 256, 512)}, {route.ids.id}, {out}});
           }}};
}

}  // namespace sluice::program
