// What enters the cache, and attention over it.
#include <algorithm>

#include "backend/vulkan/emit.h"
#include "quant/cache_row.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

struct RowWords {
  uint32_t words, coded, exact, scales;
};
RowWords row_words(const Tensor& cache) {
  const quant::CacheRow row = cache.cache_row();
  return {static_cast<uint32_t>(row.bytes() / 4), static_cast<uint32_t>(row.coded()),
          static_cast<uint32_t>(row.exact_at() / 4), static_cast<uint32_t>(row.scales_at() / 4)};
}

struct Attention {
  TensorId q, cache, out, sinks;
  int64_t kv_heads, values_at, value_step;
  float scale;
  int64_t window, layer;
};

void emit_attention(Emit& emit, const Attention& op) {
  constexpr int64_t kWorkgroup = 128;
  const int64_t heads = emit.heads(op.q), key = emit.columns(op.q), value = emit.columns(op.out);
  const int64_t of_group = heads / op.kv_heads;
  const int64_t tile = std::min<int64_t>(4, of_group), tiles = (of_group + tile - 1) / tile;
  const Stretches cut = stretches(emit.layout, emit.sizes);
  const Place q = emit.place(op.q), out = emit.place(op.out);
  const RowWords row = row_words(emit[op.cache]);
  const StepLayout& step = emit.layout.step;
  const auto partial = static_cast<uint32_t>(emit.layout.scratch_at / 4);
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  const bool sinks = op.sinks != kNoTensor;
  Dispatch dispatch{.shader = Shader::attend};
  dispatch.constants = {static_cast<uint32_t>(emit[op.cache].type),
                        u(tile),
                        u(key),
                        groups(value, 4 * kWorkgroup),
                        sinks,
                        emit.is_aligned(op.q)};
  dispatch.params = {q.at,
                     q.row,
                     q.head,
                     out.at,
                     out.row,
                     out.head,
                     u(heads),
                     u(of_group),
                     u(tiles),
                     u(key),
                     u(value),
                     u(op.values_at),
                     u(op.value_step),
                     row.words,
                     row.coded,
                     row.exact,
                     row.scales,
                     step.positions,
                     step.sequences,
                     step.tables,
                     u(op.window),
                     u(cut.positions),
                     u(cut.count),
                     partial,
                     bits(op.scale)};
  dispatch.groups = {u(cut.count), u(emit.sizes.rows), u(op.kv_heads * tiles)};
  if (sinks) dispatch.weights[0] = emit.vector(op.sinks);
  dispatch.cache = op.cache, dispatch.cache_layer = op.layer;
  emit.list.push_back(dispatch);
  if (cut.count == 1) return;
  Dispatch merge{.shader = Shader::attend_merge, .constants = {sinks}, .waits = true};
  merge.params = {out.at, out.row, out.head, u(heads), u(value), u(cut.count), partial};
  merge.groups = {u(heads), u(emit.sizes.rows), 1};
  merge.weights[0] = dispatch.weights[0];
  emit.list.push_back(std::move(merge));
}

}  // namespace

void emit(Emit& emit, const KvAppend& op) {
  const Tensor& cache = emit[op.cache.id];
  const Place latent = emit.place(op.latent.id), key = emit.place(op.rope_key.id);
  const RowWords row = row_words(cache);
  Dispatch dispatch{.shader = Shader::kv_append, .constants = {static_cast<uint32_t>(cache.type)}};
  dispatch.params = {latent.at,
                     latent.row,
                     key.at,
                     key.row,
                     emit.columns(op.latent.id),
                     static_cast<uint32_t>(cache.columns()),
                     row.words,
                     row.coded,
                     row.exact,
                     row.scales,
                     emit.layout.step.slots};
  dispatch.groups = {1, static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.cache = op.cache.id, dispatch.cache_layer = op.cache_layer;
  emit.list.push_back(std::move(dispatch));
}

void emit(Emit& emit, const MlaAttend& op) {
  emit_attention(emit, {op.q.id, op.cache.id, op.out.id, kNoTensor, 1, 0, 0, op.scale, 0, op.cache_layer});
}

void emit(Emit& emit, const Attend& op) {
  emit_attention(
      emit, {op.q.id, op.cache.id, op.out.id, op.sinks.id, op.kv_heads, op.kv_heads * emit[op.q.id].columns(),
             emit[op.out.id].columns(), op.scale, op.window, op.cache_layer});
}

}  // namespace sluice::backend::vulkan
