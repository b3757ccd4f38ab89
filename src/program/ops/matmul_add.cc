#include "program/ops/matmul_add.h"

#include "program/ops/checks.h"

namespace sluice::program {

void MatmulAdd::check(const Program& p) const {
  Matmul{in, weight, out}.check(p);
  if (residual) expect_shape(p, "residual", residual.id, p[out.id].shape);
  if (!bias) return;
  expect_weight(p, "bias", bias.id);
  expect_shape(p, "bias", bias.id, {1, 1, p[out.id].columns()});
}

Cost MatmulAdd::cost(const Program& p, const StepShape& shape) const {
  Cost cost = Matmul{in, weight, out}.cost(p, shape);
  for (const Read added : {residual, bias}) {
    if (!added) continue;
    cost.bytes_read += p.bytes(added.id, shape);
    cost.flops += p.elements(out.id, shape);
  }
  return cost;
}

void MatmulAdd::expand(Builder& b) const {
  if (bias) {
    const TensorId sum = b.matmul_add(in.id, weight.id, residual.id);
    return b.emit(AddBias{{sum}, bias, out});
  }
  if (!residual) return b.emit(Matmul{in, weight, out});
  const TensorId product = b.matmul(in.id, weight.id);
  b.emit(Add{{product}, residual, out});
}

std::vector<OpCase> MatmulAdd::cases() {
  std::vector<OpCase> list;
  using quant::Type;
  const auto add = [&](Type type, int64_t rows, bool adds, bool biased = false) {
    const std::string name = fmt::format("{} 2048x20x256{}{} rows {}", quant::type_info(type).name,
                                         adds ? "" : ", no residual,", biased ? ", bias," : "", rows);
    list.push_back({name, rows, [=](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 20, 256);
                      const TensorId residual =
                          adds ? b.activation("residual", kStepRows, 1, 2048) : kNoTensor;
                      const TensorId bias = biased ? b.weight("bias", Type::F32, 1, 1, 2048) : kNoTensor;
                      b.matmul_add(x, b.weight("weight", type, 1, 2048, 5120), residual, bias);
                    }});
  };
  for (const auto& [type, rows] : {std::pair{Type::Q4_0, 1}, {Type::Q4_0, 6}, {Type::Q4_K, 4}})
    add(type, rows, true);
  for (const int64_t rows : {1, 4, 70}) add(Type::Q4_K, rows, false);
  for (const int64_t rows : {1, 2, 8, 40, 150}) add(Type::Q8_0, rows, true, true);
  for (const int64_t rows : {1, 4}) add(Type::F16, rows, false, true);
  add(Type::Q4_K, 5, true, true);
  // Down projections of dense models: Qwen3-8B's columns and Llama-3.1-8B's.
  const auto down = [&](Type type, int64_t columns, int64_t rows) {
    const std::string name = fmt::format("{} down 32x{} rows {}", quant::type_info(type).name, columns, rows);
    list.push_back({name, rows, [=](Builder& b) {
                      b.matmul_add(b.activation("x", kStepRows, 1, columns),
                                   b.weight("weight", type, 1, 32, columns),
                                   b.activation("residual", kStepRows, 1, 32));
                    }});
  };
  for (const Type type : {Type::Q4_K, Type::Q6_K})
    for (const int64_t rows : {2, 5, 8}) down(type, 12288, rows);
  down(Type::Q6_K, 14336, 3);
  return list;
}

}  // namespace sluice::program
