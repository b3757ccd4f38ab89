#include "program/ops/rms_norm.h"

#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

std::string RmsNorm::attributes() const { return fmt::format("epsilon {:g}", epsilon); }

void RmsNorm::check(const Program& p) const {
  expect_weight(p, "weight", weight.id);
  expect_shape(p, "weight", weight.id, {1, 1, p[in.id].columns()});
  expect_shape(p, "out", out.id, p[in.id].shape);
}

Cost RmsNorm::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, weight.id}), p.bytes(out.id, shape), 4 * p.elements(in.id, shape)};
}

void RmsNorm::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t columns = p[in.id].columns();
  std::vector<float> scale(static_cast<size_t>(columns));
  memory.weight_row(weight.id, 0, 0, scale.data());
  for (int64_t r = 0; r < Program::rows(p[in.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < p[in.id].heads(); ++h) {
      const float* x = memory.row(in.id, r, h);
      float* y = memory.row(out.id, r, h);
      const float mean = ref_dot(x, x, columns) / static_cast<float>(columns);
      const float inverse = 1.0f / std::sqrt(mean + epsilon);
      for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * inverse * scale[static_cast<size_t>(c)];
    }
  }
}

std::vector<OpCase> RmsNorm::cases() {
  std::vector<OpCase> list;
  for (const int64_t columns : {512, 768, 2048}) {
    list.push_back({std::to_string(columns), 5, [columns](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 1, columns);
                      b.rms_norm(x, b.weight("weight", quant::Type::F32, 1, 1, columns), 1e-5f);
                    }});
  }
  list.push_back({"first 512 of 576", 5, [](Builder& b) {
                    const TensorId x = b.columns(b.activation("x", kStepRows, 1, 576), "latent", 0, 512);
                    b.rms_norm(x, b.weight("weight", quant::Type::F32, 1, 1, 512), 1e-6f);
                  }});
  list.push_back({"16 heads of 128", 5, [](Builder& b) {
                    const TensorId x = b.activation("x", kStepRows, 16, 128);
                    b.rms_norm(x, b.weight("weight", quant::Type::F32, 1, 1, 128), 1e-6f);
                  }});
  return list;
}

}  // namespace sluice::program
