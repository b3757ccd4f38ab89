#include "program/ops/gate_up.h"

#include "program/ops/checks.h"

namespace sluice::program {

void GateUp::check(const Program& p) const {
  Matmul{in, gate, out}.check(p);
  Matmul{in, up, out}.check(p);
}

Cost GateUp::cost(const Program& p, const StepShape& shape) const {
  const double rows = Program::rows(p[in.id], shape);
  return {bytes_of(p, shape, {in.id, gate.id, up.id}), p.bytes(out.id, shape),
          4 * rows * p.elements(gate.id, shape) + 5 * p.elements(out.id, shape)};
}

void GateUp::expand(Builder& b) const {
  b.emit(SiluMul{{b.matmul(in.id, gate.id)}, {b.matmul(in.id, up.id)}, out});
}

std::vector<OpCase> GateUp::cases() {
  std::vector<OpCase> list;
  for (const int64_t rows : {1, 5}) {
    list.push_back({fmt::format("Q4_K with Q6_K 1024x2048 rows {}", rows), rows, [](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 1, 2048);
                      const TensorId gate = b.weight("gate", quant::Type::Q4_K, 1, 1024, 2048);
                      b.gate_up(x, gate, b.weight("up", quant::Type::Q6_K, 1, 1024, 2048));
                    }});
  }
  // As wide as shared experts are.
  list.push_back({"Q5_K 1504x1792 rows 70", 70, [](Builder& b) {
                    const TensorId x = b.activation("x", kStepRows, 1, 1792);
                    const TensorId gate = b.weight("gate", quant::Type::Q5_K, 1, 1504, 1792);
                    b.gate_up(x, gate, b.weight("up", quant::Type::Q5_K, 1, 1504, 1792));
                  }});
  return list;
}

}  // namespace sluice::program
