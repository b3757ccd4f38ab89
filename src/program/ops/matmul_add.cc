#include "program/ops/matmul_add.h"

#include "program/ops/checks.h"

namespace sluice::program {

void MatmulAdd::check(const Program& p) const {
  Matmul{in, weight, out}.check(p);
  if (residual) expect_shape(p, "residual", residual.id, p[out.id].shape);
}

Cost MatmulAdd::cost(const Program& p, const StepShape& shape) const {
  Cost cost = Matmul{in, weight, out}.cost(p, shape);
  if (!residual) return cost;
  cost.bytes_read += p.bytes(residual.id, shape);
  cost.flops += p.elements(out.id, shape);
  return cost;
}

void MatmulAdd::expand(Builder& b) const {
  if (!residual) return b.emit(Matmul{in, weight, out});
  const TensorId product = b.matmul(in.id, weight.id);
  b.emit(Add{{product}, residual, out});
}

std::vector<OpCase> MatmulAdd::cases() {
  std::vector<OpCase> list;
  using quant::Type;
  const auto add = [&](Type type, int64_t rows, bool adds) {
    const std::string name = fmt::format("{} 2048x20x256{} rows {}", quant::type_info(type).name,
                                         adds ? "" : ", no residual,", rows);
    list.push_back({name, rows, [=](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 20, 256);
                      const TensorId residual =
                          adds ? b.activation("residual", kStepRows, 1, 2048) : kNoTensor;
                      b.matmul_add(x, b.weight("weight", type, 1, 2048, 5120), residual);
                    }});
  };
  for (const auto& [type, rows] : {std::pair{Type::Q4_0, 1}, {Type::Q4_0, 6}, {Type::Q4_K, 4}})
    add(type, rows, true);
  for (const int64_t rows : {1, 4, 70}) add(Type::Q4_K, rows, false);
  return list;
}

}  // namespace sluice::program
