#include "program/ops/add_bias.h"

#include "program/ops/checks.h"

namespace sluice::program {

void AddBias::check(const Program& p) const {
  const Tensor& tensor = p[in.id];
  expect_weight(p, "bias", bias.id);
  expect_shape(p, "bias", bias.id, {1, 1, tensor.heads() * tensor.columns()});
  expect_shape(p, "out", out.id, tensor.shape);
}

Cost AddBias::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, bias.id}), p.bytes(out.id, shape), p.elements(out.id, shape)};
}

void AddBias::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t heads = p[in.id].heads(), columns = p[in.id].columns();
  std::vector<float> b(static_cast<size_t>(heads * columns));
  memory.weight_row(bias.id, 0, 0, b.data());
  for (int64_t r = 0; r < Program::rows(p[in.id], input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < columns; ++c) {
        memory.row(out.id, r, h)[c] = memory.row(in.id, r, h)[c] + b[static_cast<size_t>(h * columns + c)];
      }
    }
  }
}

std::vector<OpCase> AddBias::cases() {
  const auto build = [](int64_t heads, int64_t columns) {
    return [=](Builder& b) {
      const TensorId x = b.activation("x", kStepRows, heads, columns);
      b.add_bias(x, b.weight("bias", quant::Type::F32, 1, 1, heads * columns));
    };
  };
  return {{"2048", 5, build(1, 2048)}, {"12x128", 5, build(12, 128)}};
}

}  // namespace sluice::program
