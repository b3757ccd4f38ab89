#include "program/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "program/ops/checks.h"

namespace sluice::program {

double RopeParams::frequency(int64_t pair, int64_t dims) const {
  if (!turns) return 0;
  const double plain = std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
  if (factor == 1.0) return plain;
  if (original_context == 0) return plain / factor;
  // YaRN: pairs that turn often within the original context keep their frequency, slow ones are stretched,
  // with a linear ramp over the pair index between. The index of a pair that turns `rotations` times is dims
  // * ln(context / (rotations * 2 pi)) / (2 ln base).
  const auto pair_of = [&](double rotations) {
    return static_cast<double>(dims) * std::log(original_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double from = pair_of(beta_fast), to = pair_of(beta_slow);
  const double low = std::max(0.0, whole_ramp ? std::floor(from) : from);
  double high = std::min(static_cast<double>(dims - 1), whole_ramp ? std::ceil(to) : to);
  if (high == low) high += 0.001;  // the ramp's division, as the reference implementations do
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return plain * (1 - ramp) + plain / factor * ramp;
}

int64_t Rope::rope_columns(const Program& p) const { return p[in.id].columns() - passed; }

std::string Rope::attributes() const {
  std::string text = fmt::format("base {:g}", params.base);
  if (params.pairs == RopePairs::Halves) text += " halves";
  if (params.factor != 1.0 && params.original_context == 0) {
    text += fmt::format(" linear factor {:g}", params.factor);
  } else if (params.factor != 1.0) {
    text += fmt::format(" yarn factor {:g} of {:g}{}", params.factor, params.original_context,
                        params.whole_ramp ? "" : ", ramp between pairs");
  }
  if (passed > 0) text += fmt::format(" passed {}", passed);
  return text;
}

void Rope::check(const Program& p) const {
  if (passed < 0 || rope_columns(p) < 2 || rope_columns(p) % 2 != 0)
    fail("in: {} of {} columns of {} rotate, expected pairs", rope_columns(p), p[in.id].columns(),
         p[in.id].name);
  expect_shape(p, "out", out.id, p[in.id].shape);
  if (!factors) return;
  expect_weight(p, "factors", factors.id);
  expect_shape(p, "factors", factors.id, {1, 1, rope_columns(p) / 2});
}

Cost Rope::cost(const Program& p, const StepShape& shape) const {
  const double share = static_cast<double>(rope_columns(p)) / static_cast<double>(p[in.id].columns());
  return {bytes_of(p, shape, {in.id, factors.id}), p.bytes(out.id, shape),
          3 * share * p.elements(in.id, shape)};
}

void Rope::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t dims = rope_columns(p);
  std::vector<float> divisors(static_cast<size_t>(dims / 2), 1.0f);
  if (factors) memory.weight_row(factors.id, 0, 0, divisors.data());
  for (int64_t r = 0; r < input.rows(); ++r) {
    const double position = input.positions[static_cast<size_t>(r)];
    for (int64_t h = 0; h < p[in.id].heads(); ++h) {
      const float* x = memory.row(in.id, r, h);
      float* y = memory.row(out.id, r, h);
      for (int64_t i = 0; i < dims / 2; ++i) {
        const double angle = position * params.frequency(i, dims) / divisors[static_cast<size_t>(i)];
        const auto [first, second] = pair(params.pairs, i, dims);
        const double a = x[first], b = x[second];
        y[first] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        y[second] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
      }
      std::copy_n(x + dims, passed, y + dims);
    }
  }
}

std::vector<OpCase> Rope::cases() {
  const auto latent = [](RopeParams params) {
    return [params](Builder& b) {
      const TensorId in = b.columns(b.activation("q", kStepRows, 20, 256), "q_rope", 192, 64);
      const TensorId out = b.columns(b.activation("latent", kStepRows, 20, 576), "rotated", 512, 64);
      b.rope(in, params, out);
    };
  };
  const auto whole = [](RopePairs pairs, bool factors) {
    return [=](Builder& b) {
      const TensorId divisors = factors ? b.weight("factors", quant::Type::F32, 1, 1, 64) : kNoTensor;
      RopeParams params{5e5};
      params.pairs = pairs;
      b.rope(b.activation("q", kStepRows, 8, 128), params, b.activation("rotated", kStepRows, 8, 128),
             divisors);
    };
  };
  const auto part = [](RopePairs pairs, int64_t columns, int64_t passed) {
    return [=](Builder& b) {
      const TensorId divisors = b.weight("factors", quant::Type::F32, 1, 1, (columns - passed) / 2);
      RopeParams params{1e6};
      params.pairs = pairs;
      b.rope(b.activation("q", kStepRows, 6, columns), params, b.activation("rotated", kStepRows, 6, columns),
             divisors, passed);
    };
  };
  return {{"plain 20x64", 5, latent({1e6})},
          {"yarn 20x64", 5, latent({1e4, 40, 4096})},
          {"linear 20x64", 5, latent({.base = 1e4, .factor = 4, .original_context = 0})},
          {"yarn, ramp between pairs, 20x64", 5,
           latent({.base = 1.5e5, .factor = 32, .original_context = 4096, .whole_ramp = false})},
          {"halves 8x128", 5, whole(RopePairs::Halves, false)},
          {"factors 8x128", 5, whole(RopePairs::Neighbours, true)},
          {"halves 6x128, 64 passed", 5, part(RopePairs::Halves, 128, 64)},
          {"6x80, 48 passed", 5, part(RopePairs::Neighbours, 80, 48)},
          {"halves 6x64, 62 passed", 5, part(RopePairs::Halves, 64, 62)}};
}

}  // namespace sluice::program
