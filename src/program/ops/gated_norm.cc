#include "program/ops/gated_norm.h"

#include "program/ops/checks.h"

namespace sluice::program {

std::string GatedNorm::attributes() const {
  return fmt::format("epsilon {:g} {}", epsilon, form == GateForm::Silu ? "silu" : "sigmoid");
}

void GatedNorm::check(const Program& p) const {
  RmsNorm{in, weight, out, epsilon}.check(p);
  expect_shape(p, "gate", gate.id, p[in.id].shape);
}

Cost GatedNorm::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {in.id, weight.id, gate.id}), p.bytes(out.id, shape),
          9 * p.elements(in.id, shape)};
}

void GatedNorm::expand(Builder& b) const {
  const TensorId normed = b.rms_norm(in.id, weight.id, epsilon);
  if (form == GateForm::Silu) {
    b.emit(SiluMul{gate, {normed}, out});
  } else {
    b.emit(SigmoidMul{{normed}, gate, out});
  }
}

std::vector<OpCase> GatedNorm::cases() {
  const auto build = [](int64_t heads, int64_t columns, GateForm form) {
    return [=](Builder& b) {
      const TensorId x = b.activation("x", kStepRows, heads, columns);
      const TensorId gate = b.activation("gate", kStepRows, heads, columns);
      b.gated_norm(x, b.weight("weight", quant::Type::F32, 1, 1, columns), gate, 1e-6f, form);
    };
  };
  return {{"32x128", 5, build(32, 128, GateForm::Silu)},
          {"5x96", 3, build(5, 96, GateForm::Silu)},
          {"32x128, sigmoid", 5, build(32, 128, GateForm::Sigmoid)}};
}

}  // namespace sluice::program
