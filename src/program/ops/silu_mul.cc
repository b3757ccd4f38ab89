#include "program/ops/silu_mul.h"

#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

void SiluMul::check(const Program& p) const {
  expect_shape(p, "up", up.id, p[gate.id].shape);
  expect_shape(p, "out", out.id, p[gate.id].shape);
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
      for (int64_t c = 0; c < p[gate.id].columns(); ++c) y[c] = g[c] / (1.0f + std::exp(-g[c])) * u[c];
    }
  }
}

std::vector<OpCase> SiluMul::cases() {
  return {{"4x1536", 5, [](Builder& b) {
             const TensorId gate = b.activation("gate", kStepRows, 4, 1536);
             b.silu_mul(gate, b.activation("up", kStepRows, 4, 1536));
           }}};
}

}  // namespace sluice::program
