#include "program/ops/matmul.h"

#include "program/ops/checks.h"

namespace sluice::program {

void Matmul::check(const Program& p) const {
  expect_weight(p, "weight", weight.id);
  expect_contiguous(p, "in", in.id);
  expect_contiguous(p, "out", out.id);
  const auto& i = p[in.id].shape;
  const auto& o = p[out.id].shape;
  expect_shape(p, "weight", weight.id, {1, o[1] * o[2], i[1] * i[2]});
  expect_shape(p, "out", out.id, {i[0], o[1], o[2]});
}

Cost Matmul::cost(const Program& p, const StepShape& shape) const {
  const double rows = Program::rows(p[in.id], shape);
  return {bytes_of(p, shape, {in.id, weight.id}), p.bytes(out.id, shape),
          2 * rows * p.elements(weight.id, shape)};
}

void Matmul::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t rows = Program::rows(p[in.id], input.rows(), input.outputs());
  const int64_t outputs = p[weight.id].shape[1], inputs = p[weight.id].columns();
  std::vector<float> w(static_cast<size_t>(inputs));
  for (int64_t n = 0; n < outputs; ++n) {
    memory.weight_row(weight.id, 0, n, w.data());
    for (int64_t r = 0; r < rows; ++r)
      memory.row(out.id, r)[n] = ref_dot(memory.row(in.id, r), w.data(), inputs);
  }
}

std::vector<OpCase> Matmul::cases() {
  std::vector<OpCase> list;
  for (const quant::TypeInfo& type : quant::all_types()) {
    if (type.decode == nullptr) continue;
    for (const int64_t rows : {1, 7}) {
      list.push_back({fmt::format("{} 768x2048 rows {}", type.name, rows), rows, [&type](Builder& b) {
                        const TensorId x = b.activation("x", kStepRows, 1, 2048);
                        b.matmul(x, b.weight("weight", type.type, 1, 768, 2048));
                      }});
    }
  }
  // Outputs that fill no whole group of lanes, and inputs that do not.
  for (const auto& [type, inputs] : {std::pair{quant::Type::Q5_1, 96},
                                     {quant::Type::F32, 51},
                                     {quant::Type::F16, 50},
                                     {quant::Type::BF16, 49},
                                     {quant::Type::Q3_K, 256}}) {
    list.push_back({fmt::format("{} 37x{} rows 11", quant::type_info(type).name, inputs), 11,
                    [type = type, inputs = inputs](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 1, inputs);
                      b.matmul(x, b.weight("weight", type, 1, 37, inputs));
                    }});
  }
  // A gate that a row has.
  list.push_back({"F32 1x512 rows 20", 20, [](Builder& b) {
                    const TensorId x = b.activation("x", kStepRows, 1, 512);
                    b.matmul(x, b.weight("weight", quant::Type::F32, 1, 1, 512));
                  }});
  // More rows than one tile of tensor cores takes.
  for (const quant::Type type :
       {quant::Type::Q4_0, quant::Type::Q4_K, quant::Type::Q5_K, quant::Type::Q6_K, quant::Type::Q8_0}) {
    list.push_back({fmt::format("{} 192x768 rows 150", quant::type_info(type).name), 150, [type](Builder& b) {
                      const TensorId x = b.activation("x", kStepRows, 1, 768);
                      b.matmul(x, b.weight("weight", type, 1, 192, 768));
                    }});
  }
  // As many outputs as an output matrix has: kernels of their own on some devices.
  list.push_back({"Q6_K 33792x256 rows 20", 20, [](Builder& b) {
                    const TensorId x = b.activation("x", kStepRows, 1, 256);
                    b.matmul(x, b.weight("weight", quant::Type::Q6_K, 1, 33792, 256));
                  }});
  list.push_back({"Q4_0 heads 2048x20x256", 3, [](Builder& b) {
                    const TensorId x = b.activation("x", kStepRows, 20, 256);
                    b.matmul(x, b.weight("weight", quant::Type::Q4_0, 1, 2048, 5120));
                  }});
  return list;
}

}  // namespace sluice::program
