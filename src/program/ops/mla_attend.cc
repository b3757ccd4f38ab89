#include "program/ops/mla_attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "program/ops/checks.h"

namespace sluice::program {

std::string MlaAttend::attributes() const {
  return fmt::format("scale {:g} cache layer {}", scale, cache_layer);
}

void MlaAttend::check(const Program& p) const {
  const int64_t width = p[cache.id].columns(), rank = p[out.id].columns();
  expect_shape(p, "q", q.id, {kStepRows, p[q.id].heads(), width});
  expect_shape(p, "out", out.id, {kStepRows, p[q.id].heads(), rank});
  if (rank > width) fail("out: {} is wider than the cache", p[out.id].name);
  if (cache_layer < 0 || cache_layer >= p[cache.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

Cost MlaAttend::cost(const Program& p, const StepShape& shape) const {
  const auto width = static_cast<double>(p[cache.id].columns());
  const auto rank = static_cast<double>(p[out.id].columns());
  const auto heads = static_cast<double>(p[q.id].heads());
  return {p.bytes(q.id, shape) + p.bytes(cache.id, shape.cache_rows * width), p.bytes(out.id, shape),
          2 * shape.rows * shape.context * heads * (width + rank)};
}

void MlaAttend::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t width = p[cache.id].columns(), rank = p[out.id].columns();
  for (int64_t r = 0; r < input.rows(); ++r) {
    const int64_t length = input.positions[static_cast<size_t>(r)] + 1;
    std::vector<double> weights(static_cast<size_t>(length));
    std::vector<double> sums(static_cast<size_t>(rank));
    for (int64_t h = 0; h < p[q.id].heads(); ++h) {
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t t = 0; t < length; ++t) {
        const float* key = memory.cache_row(cache.id, cache_layer, input.slot_of(r, t));
        weights[static_cast<size_t>(t)] =
            static_cast<double>(scale) * ref_dot(memory.row(q.id, r, h), key, width);
        largest = std::max(largest, weights[static_cast<size_t>(t)]);
      }
      for (double& weight : weights) total += weight = std::exp(weight - largest);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t t = 0; t < length; ++t) {
        const float* value = memory.cache_row(cache.id, cache_layer, input.slot_of(r, t));
        for (int64_t c = 0; c < rank; ++c) {
          sums[static_cast<size_t>(c)] += weights[static_cast<size_t>(t)] * static_cast<double>(value[c]);
        }
      }
      float* y = memory.row(out.id, r, h);
      for (int64_t c = 0; c < rank; ++c) y[c] = static_cast<float>(sums[static_cast<size_t>(c)] / total);
    }
  }
}

std::vector<OpCase> MlaAttend::cases() {
  const auto build = [](int64_t heads, int64_t rank, int64_t rope, quant::Type cache = quant::Type::F16) {
    return [=](Builder& b) {
      const TensorId rows = b.cache(1, rank + rope, cache, rope);
      const TensorId latent = b.activation("latent", kStepRows, 1, rank);
      const TensorId key = b.activation("key", kStepRows, 1, rope);
      b.kv_append(latent, key, rows, 0);
      b.mla_attend(b.activation("q", kStepRows, heads, rank + rope), rows, rank, 0.0625f, 0);
    };
  };
  return {{"20 heads 512+64 rows 1", 1, build(20, 512, 64)},
          {"20 heads 512+64 rows 150", 150, build(20, 512, 64)},
          {"5 heads 64+32 rows 70", 70, build(5, 64, 32)},
          {"20 heads 512+64 of Q8_0 rows 1", 1, build(20, 512, 64, quant::Type::Q8_0)},
          {"20 heads 512+64 of Q8_0 rows 150", 150, build(20, 512, 64, quant::Type::Q8_0)},
          {"5 heads 64+32 of Q8_0 rows 70", 70, build(5, 64, 32, quant::Type::Q8_0)}};
}

}  // namespace sluice::program
