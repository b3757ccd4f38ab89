#include "program/ops/sigmoid_mul.h"

#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

void SigmoidMul::check(const Program& p) const {
  const auto& shape = p[in.id].shape;
  expect_shape(p, "out", out.id, shape);
  const bool one = p[gate.id].heads() == 1 && p[gate.id].columns() == 1;
  expect_shape(p, "gate", gate.id, one ? std::array<int64_t, 3>{shape[0], 1, 1} : shape);
}

Cost SigmoidMul::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, gate.id}), p.bytes(out.id, shape),
          p.elements(out.id, shape) + 4 * p.elements(gate.id, shape)};
}

void SigmoidMul::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const bool one = p[gate.id].heads() == 1 && p[gate.id].columns() == 1;
  for (int64_t r = 0; r < Program::rows(p[in.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < p[in.id].heads(); ++h) {
      for (int64_t c = 0; c < p[in.id].columns(); ++c) {
        const float by = one ? memory.row(gate.id, r)[0] : memory.row(gate.id, r, h)[c];
        memory.row(out.id, r, h)[c] = memory.row(in.id, r, h)[c] / (1.0f + std::exp(-by));
      }
    }
  }
}

std::vector<OpCase> SigmoidMul::cases() {
  const auto whole = [](Builder& b) {
    // A head's gate lies behind its query.
    const TensorId both = b.activation("query_and_gate", kStepRows, 4, 512);
    b.sigmoid_mul(b.activation("x", kStepRows, 4, 256), b.columns(both, "gate", 256, 256));
  };
  const auto one = [](Builder& b) {
    b.sigmoid_mul(b.activation("x", kStepRows, 1, 500), b.activation("gate", kStepRows, 1, 1));
  };
  return {{"4x256", 5, whole}, {"500, one gate", 5, one}};
}

}  // namespace sluice::program
