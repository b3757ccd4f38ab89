#include "program/ops/add.h"

#include "program/ops/checks.h"

namespace sluice::program {

void Add::check(const Program& p) const {
  expect_shape(p, "b", b.id, p[a.id].shape);
  expect_shape(p, "out", out.id, p[a.id].shape);
}

Cost Add::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {a.id, b.id}), p.bytes(out.id, shape), p.elements(out.id, shape)};
}

void Add::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  for (int64_t r = 0; r < Program::rows(p[a.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < p[a.id].heads(); ++h) {
      for (int64_t c = 0; c < p[a.id].columns(); ++c) {
        memory.row(out.id, r, h)[c] = memory.row(a.id, r, h)[c] + memory.row(b.id, r, h)[c];
      }
    }
  }
}

std::vector<OpCase> Add::cases() {
  return {{"2048", 5, [](Builder& builder) {
             const TensorId a = builder.activation("a", kStepRows, 1, 2048);
             const TensorId b = builder.activation("b", kStepRows, 1, 2048);
             builder.emit(Add{{a}, {b}, {builder.activation("out", kStepRows, 1, 2048)}});
           }}};
}

}  // namespace sluice::program
