#include "program/ops/kv_append.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

std::string KvAppend::attributes() const { return fmt::format("cache layer {}", cache_layer); }

void KvAppend::check(const Program& p) const {
  const int64_t rank = p[latent.id].columns(), rope = p[rope_key.id].columns();
  expect_shape(p, "latent", latent.id, {kStepRows, 1, rank});
  expect_shape(p, "rope_key", rope_key.id, {kStepRows, 1, rope});
  expect_shape(p, "cache", cache.id, {p[cache.id].shape[0], kPageRows, rank + rope});
  if (cache_layer < 0 || cache_layer >= p[cache.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

Cost KvAppend::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {latent.id, rope_key.id}),
          p.bytes(cache.id, shape.rows * static_cast<double>(p[cache.id].columns())), 0};
}

void KvAppend::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t rank = p[latent.id].columns(), rope = p[rope_key.id].columns();
  for (int64_t r = 0; r < input.rows(); ++r) {
    float* row = memory.cache_row(cache.id, cache_layer, input.slots[static_cast<size_t>(r)]);
    std::copy_n(memory.row(latent.id, r), rank, row);
    std::copy_n(memory.row(rope_key.id, r), rope, row + rank);
    memory.round_cache_row(cache.id, cache_layer, input.slots[static_cast<size_t>(r)]);
  }
}

std::vector<OpCase> KvAppend::cases() {
  // Alone it leaves nothing to look at, so the rows are attended to at once.
  const auto build = [](quant::Type type) {
    return [=](Builder& b) {
      const TensorId cache = b.cache(2, 576, type, 64);
      const TensorId latent = b.activation("latent", kStepRows, 1, 512);
      const TensorId key = b.activation("key", kStepRows, 1, 64);
      b.kv_append(latent, key, cache, 1);
      b.mla_attend(b.activation("q", kStepRows, 4, 576), cache, 512, 0.0625f, 1);
    };
  };
  return {{"512+64 layer 1 of 2", 5, build(quant::Type::F16)},
          {"512+64 of Q8_0 layer 1 of 2", 5, build(quant::Type::Q8_0)}};
}

}  // namespace sluice::program
