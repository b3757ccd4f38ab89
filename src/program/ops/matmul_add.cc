#include "program/ops/matmul_add.h"

#include "program/ops/checks.h"

namespace sluice::program {

void MatmulAdd::check(const Program& p) const {
  Matmul{in, weight, out}.check(p);
  expect_shape(p, "residual", residual.id, p[out.id].shape);
}

Cost MatmulAdd::cost(const Program& p, const StepShape& shape) const {
  Cost cost = Matmul{in, weight, out}.cost(p, shape);
  cost.bytes_read += p.bytes(residual.id, shape);
  cost.flops += p.elements(out.id, shape);
  return cost;
}

void MatmulAdd::expand(Builder& b) const {
  const TensorId product = b.matmul(in.id, weight.id);
  b.emit(Add{{product}, residual, out});
}

std::vector<OpCase> MatmulAdd::cases() {
  std::vector<OpCase> list;
  using quant::Type;
  for (const auto& [type, rows] : {std::pair{Type::Q4_0, 1}, {Type::Q4_0, 6}, {Type::Q4_K, 4}}) {
    const std::string name = quant::type_info(type).name;
    list.push_back({fmt::format("{} 2048x20x256 rows {}", name, rows), rows, [type = type](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 20, 256);
                      const TensorId residual = b.activation("residual", kStepRows, 1, 2048);
                      b.matmul_add(x, b.weight("weight", type, 1, 2048, 5120), residual);
                    }});
  }
  return list;
}

}  // namespace sluice::program
