#include "program/ops/expert_combine.h"

#include "program/ops/checks.h"

namespace sluice::program {

void ExpertCombine::check(const Program& p) const {
  const auto& [rows, used, columns] = p[in.id].shape;
  expect_shape(p, "weights", weights.id, {rows, 1, used});
  expect_shape(p, "out", out.id, {rows, 1, columns});
}

Cost ExpertCombine::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, weights.id}), p.bytes(out.id, shape), 2 * p.elements(in.id, shape)};
}

void ExpertCombine::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  for (int64_t r = 0; r < input.rows(); ++r) {
    const float* factor = memory.row(weights.id, r);
    for (int64_t c = 0; c < p[out.id].columns(); ++c) {
      float sum = 0;
      for (int64_t k = 0; k < p[in.id].heads(); ++k) sum += factor[k] * memory.row(in.id, r, k)[c];
      memory.row(out.id, r)[c] = sum;
    }
  }
}

std::vector<OpCase> ExpertCombine::cases() {
  return {{"4 experts 2048", 5, [](Builder& b) {
             const TensorId x = b.activation("x", kStepRows, 4, 2048);
             const TensorId weights = b.activation("weights", kStepRows, 1, 4);
             const TensorId out = b.activation("out", kStepRows, 1, 2048);
             b.emit(ExpertCombine{{x}, {weights}, {out}});
           }}};
}

}  // namespace sluice::program
