#include "program/ops/silu_mul.h"

#include <algorithm>
#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

std::string Swiglu::attributes() const {
  return is_plain() ? "" : fmt::format("alpha {:g} limit {:g} shift {:g}", alpha, limit, shift);
}

void SiluMul::check(const Program& p) const {
  expect_shape(p, "up", up.id, p[gate.id].shape);
  expect_shape(p, "out", out.id, p[gate.id].shape);
  if (!(form.limit > 0)) fail("limit {:g}, expected more than 0", form.limit);
}

Cost SiluMul::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {gate.id, up.id}), p.bytes(out.id, shape), 5 * p.elements(gate.id, shape)};
}

void SiluMul::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  for (int64_t r = 0; r < Program::rows(p[gate.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < p[gate.id].heads(); ++h) {
      const float* g = memory.row(gate.id, r, h);
      const float* u = memory.row(up.id, r, h);
      float* y = memory.row(out.id, r, h);
      for (int64_t c = 0; c < p[gate.id].columns(); ++c) {
        const float a = std::min(g[c], form.limit), b = std::clamp(u[c], -form.limit, form.limit);
        y[c] = a / (1.0f + std::exp(-form.alpha * a)) * (b + form.shift);
      }
    }
  }
}

std::vector<OpCase> SiluMul::cases() {
  const auto build = [](int64_t columns, Swiglu form) {
    return [=](Builder& b) {
      const TensorId gate = b.activation("gate", kStepRows, 4, columns);
      b.silu_mul(gate, b.activation("up", kStepRows, 4, columns), form);
    };
  };
  return {{"4x1536", 5, build(1536, {})},
          {"4x1000, clamped", 5, build(1000, {.alpha = 1.702f, .limit = 0.5f, .shift = 1})}};
}

}  // namespace sluice::program
