#include "program/ops/attention_temperature.h"

#include <cmath>

#include "program/ops/checks.h"

namespace sluice::program {

float AttentionTemperature::factor(int32_t position) const {
  return static_cast<float>(1 + beta * std::log(1 + std::floor(position / length)));
}

std::string AttentionTemperature::attributes() const {
  return fmt::format("beta {:g} length {:g}", beta, length);
}

void AttentionTemperature::check(const Program& p) const {
  expect_shape(p, "in", in.id, {kStepRows, p[in.id].heads(), p[in.id].columns()});
  expect_shape(p, "out", out.id, p[in.id].shape);
  if (!(length >= 1)) fail("length {:g}, expected at least 1", length);
}

Cost AttentionTemperature::cost(const Program& p, const StepShape& shape) const {
  return {p.bytes(in.id, shape), p.bytes(out.id, shape), p.elements(out.id, shape)};
}

void AttentionTemperature::reference(RefMemory& memory, const StepInput& input) const {
  const Tensor& t = memory.program()[in.id];
  for (int64_t r = 0; r < input.rows(); ++r) {
    const float by = factor(input.positions[static_cast<size_t>(r)]);
    for (int64_t h = 0; h < t.heads(); ++h) {
      for (int64_t c = 0; c < t.columns(); ++c) memory.row(out.id, r, h)[c] = memory.row(in.id, r, h)[c] * by;
    }
  }
}

std::vector<OpCase> AttentionTemperature::cases() {
  return {{"8x320 every 2", 9,
           [](Builder& b) { b.attention_temperature(b.activation("q", kStepRows, 8, 320), 0.1, 2); }}};
}

}  // namespace sluice::program
