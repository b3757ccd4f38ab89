#include "program/ops/copy.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

void Copy::check(const Program& p) const {
  expect_shape(p, "out", out.id, p[in.id].shape);
  expect_type(p, "out", out.id, p[in.id].type);
}

Cost Copy::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id}), bytes_of(p, shape, {out.id}), 0};  // a place has one of them alone
}

void Copy::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const Tensor& t = p[in.id];
  for (int64_t r = 0; r < Program::rows(t, input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < t.heads(); ++h) {
      if (t.type == quant::Type::I32) {
        std::copy_n(memory.int_row(in.id, r, h), t.columns(), memory.int_row(out.id, r, h));
      } else {
        std::copy_n(memory.row(in.id, r, h), t.columns(), memory.row(out.id, r, h));
      }
    }
  }
}

std::vector<OpCase> Copy::cases() {
  return {{"2048", 5, [](Builder& b) {
             const TensorId x = b.activation("x", kStepRows, 1, 2048);
             b.set_place(1);
             b.emit(Copy{{x}, {b.activation("out", kStepRows, 1, 2048)}});
           }}};
}

}  // namespace sluice::program
