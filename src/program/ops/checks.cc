#include "program/ops/checks.h"

namespace sluice::program {

void expect_shape(const Program& p, const char* operand, TensorId id, const std::array<int64_t, 3>& shape) {
  const auto& is = p[id].shape;
  if (is != shape) {
    fail("{}: {} has shape [{}], expected [{}]", operand, p[id].name, fmt::join(is, ", "),
         fmt::join(shape, ", "));
  }
}

void expect_type(const Program& p, const char* operand, TensorId id, quant::Type type) {
  if (p[id].type != type) {
    fail("{}: {} is {}, expected {}", operand, p[id].name, quant::type_info(p[id].type).name,
         quant::type_info(type).name);
  }
}

void expect_weight(const Program& p, const char* operand, TensorId id) {
  const Tensor& tensor = p[id];
  if (tensor.kind != Kind::Weight) fail("{}: {} is no weight", operand, tensor.name);
  if (quant::type_info(tensor.type).decode == nullptr) {
    fail("{}: {} has type {}, which cannot be decoded", operand, tensor.name,
         quant::type_info(tensor.type).name);
  }
}

void expect_contiguous(const Program& p, const char* operand, TensorId id) {
  const Tensor& tensor = p[id];
  if (tensor.heads() > 1 && tensor.stride[1] != tensor.columns()) {
    fail("{}: {} has gaps between its heads", operand, tensor.name);
  }
}

double bytes_of(const Program& p, const StepShape& shape, std::initializer_list<TensorId> ids) {
  double sum = 0;
  for (const TensorId id : ids) {
    if (id != kNoTensor) sum += p.bytes(id, shape);
  }
  return sum;
}

double expert_bytes(const Program& p, TensorId weight, double used, const StepShape& shape) {
  const auto& [experts, rows, columns] = p[weight].shape;
  const double distinct = shape.distinct_experts(static_cast<double>(experts), used);
  return p.bytes(weight, distinct * static_cast<double>(rows * columns));
}

double bias_bytes(const Program& p, TensorId bias, double used, const StepShape& shape) {
  if (bias == kNoTensor) return 0;
  const auto& [one, experts, columns] = p[bias].shape;
  const double distinct = shape.distinct_experts(static_cast<double>(experts), used);
  return p.bytes(bias, distinct * static_cast<double>(columns));
}

}  // namespace sluice::program
