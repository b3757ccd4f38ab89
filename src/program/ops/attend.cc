#include "program/ops/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "program/ops/checks.h"

namespace sluice::program {

std::string Attend::attributes() const {
  std::string text = fmt::format("kv heads {} scale {:g} cache layer {}", kv_heads, scale, cache_layer);
  if (window > 0) text += fmt::format(" window {}", window);
  return text;
}

void Attend::check(const Program& p) const {
  const int64_t heads = p[q.id].heads(), key = p[q.id].columns(), value = p[out.id].columns();
  if (kv_heads < 1 || heads % kv_heads != 0) fail("{} heads do not share {} key heads", heads, kv_heads);
  expect_shape(p, "q", q.id, {kStepRows, heads, key});
  expect_shape(p, "out", out.id, {kStepRows, heads, value});
  expect_shape(p, "cache", cache.id, {p[cache.id].shape[0], kPageRows, kv_heads * (key + value)});
  if (cache_layer < 0 || cache_layer >= p[cache.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
  if (window < 0) fail("window {}, expected at least 0", window);
  if (!sinks) return;
  expect_weight(p, "sinks", sinks.id);
  expect_shape(p, "sinks", sinks.id, {1, 1, heads});
}

Cost Attend::cost(const Program& p, const StepShape& shape) const {
  const auto width = static_cast<double>(p[cache.id].columns());
  const auto heads = static_cast<double>(p[q.id].heads());
  const auto columns = static_cast<double>(p[q.id].columns() + p[out.id].columns());
  double context = shape.context, cache_rows = shape.cache_rows;
  if (window > 0) {  // beside its own, a sequence's rows see what lies in the window of their first
    context = std::min(context, static_cast<double>(window));
    cache_rows = std::min(cache_rows, shape.sequences * static_cast<double>(window - 1) + shape.rows);
  }
  return {bytes_of(p, shape, {q.id, sinks.id}) + p.bytes(cache.id, cache_rows * width),
          p.bytes(out.id, shape), 2 * shape.rows * context * heads * columns};
}

void Attend::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t heads = p[q.id].heads(), key = p[q.id].columns(), value = p[out.id].columns();
  std::vector<double> weights, sums(static_cast<size_t>(value));
  std::vector<float> sink(static_cast<size_t>(heads));
  if (sinks) memory.weight_row(sinks.id, 0, 0, sink.data());
  for (int64_t r = 0; r < input.rows(); ++r) {
    const int64_t length = input.positions[static_cast<size_t>(r)] + 1, from = first(length - 1);
    weights.resize(static_cast<size_t>(length));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t group = h / (heads / kv_heads);
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      if (sinks) largest = sink[static_cast<size_t>(h)];
      for (int64_t t = from; t < length; ++t) {
        const float* keys = memory.cache_row(cache.id, cache_layer, input.slot_of(r, t));
        double& weight = weights[static_cast<size_t>(t)];
        weight = static_cast<double>(scale) * ref_dot(memory.row(q.id, r, h), keys + group * key, key);
        largest = std::max(largest, weight);
      }
      if (sinks) total = std::exp(sink[static_cast<size_t>(h)] - largest);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t t = from; t < length; ++t) {
        double& weight = weights[static_cast<size_t>(t)];
        total += weight = std::exp(weight - largest);
        const float* values = memory.cache_row(cache.id, cache_layer, input.slot_of(r, t)) + kv_heads * key;
        for (int64_t c = 0; c < value; ++c) {
          sums[static_cast<size_t>(c)] += weight * static_cast<double>(values[group * value + c]);
        }
      }
      float* y = memory.row(out.id, r, h);
      for (int64_t c = 0; c < value; ++c) y[c] = static_cast<float>(sums[static_cast<size_t>(c)] / total);
    }
  }
}

std::vector<OpCase> Attend::cases() {
  const auto build = [](int64_t heads, int64_t kv_heads, int64_t key, int64_t value,
                        quant::Type cache = quant::Type::F16, int64_t window = 0, bool sinks = false) {
    return [=](Builder& b) {
      const TensorId rows = b.cache(1, kv_heads * (key + value), cache);
      const TensorId keys = b.activation("keys", kStepRows, kv_heads, key);
      const TensorId values = b.activation("values", kStepRows, kv_heads, value);
      b.kv_append(b.flatten(keys), b.flatten(values), rows, 0);
      const TensorId drains = sinks ? b.weight("sinks", quant::Type::F32, 1, 1, heads) : kNoTensor;
      b.attend(b.activation("q", kStepRows, heads, key), rows, kv_heads, value, 0.125f, 0, window, drains);
    };
  };
  return {
      {"32 heads of 8x128 rows 1", 1, build(32, 8, 128, 128)},
      {"32 heads of 8x128 rows 150", 150, build(32, 8, 128, 128)},
      {"6 heads of 3x64+32 rows 70", 70, build(6, 3, 64, 32)},
      {"5 heads of 1x64 rows 7", 7, build(5, 1, 64, 64)},
      {"14 heads of 2x96 rows 150", 150, build(14, 2, 96, 96)},
      {"4 heads of 4x80 rows 150", 150, build(4, 4, 80, 80)},
      {"16 heads of 2x256 rows 1", 1, build(16, 2, 256, 256)},
      {"16 heads of 2x256 rows 150", 150, build(16, 2, 256, 256)},
      {"14 heads of 2x64 of Q8_0 rows 150", 150, build(14, 2, 64, 64, quant::Type::Q8_0)},
      {"20 heads of 1x64 rows 3", 3, build(20, 1, 64, 64)},
      {"32 heads of 8x128 of Q8_0 rows 1", 1, build(32, 8, 128, 128, quant::Type::Q8_0)},
      {"32 heads of 8x128 of Q8_0 rows 150", 150, build(32, 8, 128, 128, quant::Type::Q8_0)},
      {"6 heads of 3x64+32 of Q8_0 rows 70", 70, build(6, 3, 64, 32, quant::Type::Q8_0)},
      {"16 heads of 2x64, sinks, rows 1", 1, build(16, 2, 64, 64, quant::Type::F16, 0, true)},
      {"16 heads of 2x64, sinks, rows 150", 150, build(16, 2, 64, 64, quant::Type::F16, 0, true)},
      {"16 heads of 2x64, sinks, window 70, rows 150", 150, build(16, 2, 64, 64, quant::Type::F16, 70, true)},
      {"6 heads of 3x64+32, window 64, rows 150", 150, build(6, 3, 64, 32, quant::Type::F16, 64)},
      {"8 heads of 1x64 of Q8_0, sinks, window 9, rows 70", 70,
       build(8, 1, 64, 64, quant::Type::Q8_0, 9, true)}};
}

}  // namespace sluice::program
