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

/// Columns of values that a workgroup of attend_tiled.comp adds up, four an invocation.
constexpr int64_t kMostTiledValues = 512;

/// Prompts' part of attention: attend_tiled.comp.
void emit_prompts(Emit& emit, const Attention& op) {
  constexpr int64_t kFewestLanes = 16;
  const int64_t of_group = op.q.heads / op.kv_heads, value = op.out.columns, rows = emit.sizes.rows;
  int64_t lanes = kMostTiledValues / 4;
  while (lanes > kFewestLanes && lanes / 2 * 4 >= value) lanes /= 2;
  // Sums of 16 values of four columns are what registers have room for.
  const int64_t pairs = lanes * 4 == kMostTiledValues ? 32 : 64;
  const RowWords row = row_words(emit[op.cache]);
  const StepLayout& step = emit.layout.step;
  const Place q = op.q.place, out = op.out.place;
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  const bool sinks = op.sinks != kNoTensor;
  Dispatch dispatch{.shader = Shader::attend_tiled};
  dispatch.constants = {static_cast<uint32_t>(emit[op.cache].type), u(pairs), op.q.columns, u(lanes), sinks};
  dispatch.params = {q.at,           q.row,       q.head,       out.at,          out.row,
                     out.head,       u(of_group), u(value),     u(op.values_at), u(op.value_step),
                     row.words,      row.coded,   row.exact,    row.scales,      step.positions,
                     step.sequences, step.tables, step.prompts, u(op.window),    bits(op.scale)};
  dispatch.groups = {groups(rows * of_group, pairs) + u(rows / kPromptRows), 1, u(op.kv_heads)};
  if (sinks) dispatch.weights[0] = emit.vector(op.sinks);
  dispatch.cache = op.cache, dispatch.cache_layer = op.layer;
  emit.add(std::move(dispatch));
}

}  // namespace

bool tiles_prompts(const Emit& emit) {
  return emit.sizes.rows > kStretchedRows && !emit.layout.options.batch_invariant;
}

Merge emit_attention(Emit& emit, const Attention& op, bool merges) {
  constexpr int64_t kWorkgroup = 256, kMostSteps = 5, kWorkgroups = 256, kMostQueries = 6144, kMostHeads = 10;
  const uint32_t rotated = op.rotated != nullptr ? op.rotated->columns : 0;
  const int64_t heads = op.q.heads, key = op.q.columns + rotated, value = op.out.columns;
  const int64_t of_group = heads / op.kv_heads;
  const Stretches cut = stretches(emit.layout, emit.sizes);
  // Heads of a tile share what is read; more workgroups are quicker, as long as a large device has room for
  // them. Queries stand in the workgroup's memory.
  const int64_t room = std::clamp<int64_t>(kMostQueries / key, 1, kMostHeads);
  int64_t tile = std::min(are_grouped(emit, emit.sizes.rows) ? room : std::min<int64_t>(room, 4), of_group);
  tile = groups(of_group, groups(of_group, tile));
  const auto tiles_of_group = [&] { return (of_group + tile - 1) / tile; };
  while (tile > 1 && cut.count * emit.sizes.rows * op.kv_heads * tiles_of_group() < kWorkgroups) tile /= 2;
  const int64_t tiles = tiles_of_group();
  int64_t lanes = kWorkgroup;
  while (lanes > 32 && lanes / 2 * 4 >= value) lanes /= 2;
  const Place q = op.q.place, out = op.out.place, last = op.rotated != nullptr ? op.rotated->place : Place{};
  const RowWords row = row_words(emit[op.cache]);
  const StepLayout& step = emit.layout.step;
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  const uint32_t partial = cut.count > 1 ? emit.scratch(heads, cut.count * (value + 4)).place.at : 0;
  const bool sinks = op.sinks != kNoTensor;
  const bool prompts = tiles_prompts(emit) && rotated == 0 && op.q.aligned && value <= kMostTiledValues;
  if (prompts) emit_prompts(emit, op);
  Dispatch dispatch{.shader = Shader::attend};
  dispatch.constants = {static_cast<uint32_t>(emit[op.cache].type),
                        u(tile),
                        u(key),
                        groups(value, 4 * lanes),
                        sinks,
                        op.q.aligned,
                        rotated,
                        rotated > 0 && op.rope->pairs == RopePairs::Halves,
                        u(emit.layout.subgroup_size >= 16
                              ? std::min<int64_t>(kMostSteps, groups(key / 4, emit.layout.subgroup_size))
                              : 1),
                        u(lanes)};
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
                     bits(op.scale),
                     last.at,
                     last.row,
                     last.head,
                     rotated > 0 ? step.angles_at(*op.rope, rotated / 2, op.factors) : 0,
                     emit.sizes.rows <= kExactRows ? u(emit.sizes.rows) : 0,
                     prompts ? step.prompts : 0};
  dispatch.groups = {u(cut.count), u(emit.sizes.rows), u(op.kv_heads * tiles)};
  if (sinks) dispatch.weights[0] = emit.vector(op.sinks);
  dispatch.cache = op.cache, dispatch.cache_layer = op.layer;
  emit.add(dispatch);
  const Merge left{u(cut.count), partial};
  if (cut.count == 1 || !merges) return left;
  Dispatch merge{.shader = Shader::attend_merge, .constants = {sinks, u(cut.count)}};
  merge.params = {out.at, out.row, out.head, u(heads), u(value), partial};
  merge.groups = {u(heads), u(emit.sizes.rows), 1};
  merge.weights[0] = dispatch.weights[0];
  emit.wait();
  emit.add(std::move(merge));
  return left;
}

std::vector<uint32_t> latent_constants(const Emit& emit, const LatentRows& latent) {
  const Tensor& cache = emit[latent.cache];
  const RowWords row = row_words(cache);
  return {static_cast<uint32_t>(cache.type),
          static_cast<uint32_t>(latent.rank),
          static_cast<uint32_t>(latent.rotated),
          latent.rope.pairs == RopePairs::Halves,
          row.words,
          row.coded,
          row.exact,
          row.scales};
}

void emit_latent_rows(Emit& emit, const LatentRows& latent) {
  constexpr size_t kFirstConstant = 20;  ///< of latent_row.glsl
  const StepLayout& step = emit.layout.step;
  Dispatch dispatch{.shader = Shader::latent_append, .constants = std::vector<uint32_t>(kFirstConstant)};
  const std::vector<uint32_t> of_row = latent_constants(emit, latent);
  dispatch.constants.insert(dispatch.constants.end(), of_row.begin(), of_row.end());
  dispatch.params = {latent.kv.place.at, latent.kv.place.row,
                     step.angles_at(latent.rope, latent.rotated / 2, latent.factors), step.slots,
                     bits(latent.epsilon)};
  dispatch.groups = {1, static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.weights[2] = emit.vector(latent.norm);
  dispatch.cache = latent.cache, dispatch.cache_layer = latent.layer;
  emit.add(std::move(dispatch));
}

/// Queries, then latent space, then attention, then out of it again; the cache's rows are made beside the
/// second.
void emit(Emit& emit, const MlaHeads& op) {
  /// Stretches that are worth merging where they are multiplied.
  constexpr int64_t kMergedStretches = 16;
  const MlaQuery& query = op.query;
  const Program& program = emit.layout.program;
  const int64_t heads = emit[op.out.id].heads(), rank = query.rank(program), rows = emit.sizes.rows;
  const auto nope = static_cast<uint32_t>(query.nope(program)),
             rotated = static_cast<uint32_t>(query.rope_columns(program));
  const bool tiled = is_tiled(emit, rows), by_columns = query.k_b_reduce == Reduce::Columns;
  const LatentRows latent{emit.operand(query.kv.id),
                          query.kv_norm.id,
                          query.cache.id,
                          query.factors.id,
                          query.rope,
                          query.cache_layer,
                          rank,
                          rotated,
                          query.epsilon};
  Operand queries = emit.operand(query.in.id);
  if (query.q) {
    const Operand low = queries;
    queries = emit.scratch(heads, nope + rotated);
    emit_product(
        emit,
        {.in = low, .weight = query.q.id, .out = queries, .norm = query.q_norm.id, .epsilon = query.epsilon});
  }
  const bool beside = by_columns && !tiled;
  if (!beside) emit_latent_rows(emit, latent);
  if (query.q) emit.wait();
  const bool rotated_before = tiles_prompts(emit);
  const Operand from = queries.part(0, nope), last = queries.part(nope, rotated),
                whole = emit.scratch(heads, rotated_before ? rank + rotated : rank),
                to_latent = whole.part(0, static_cast<uint32_t>(rank));
  if (rotated_before)
    emit_rope(emit, last, query.rope, query.factors.id, 0, whole.part(static_cast<uint32_t>(rank), rotated));
  if (by_columns)
    emit_product(emit, {.in = from,
                        .weight = query.k_b.id,
                        .out = to_latent,
                        .by_head = true,
                        .latent = beside ? &latent : nullptr});
  else
    emit_rows_product(emit, from, query.k_b.id, to_latent);
  emit.wait();
  const Operand context = emit.scratch(heads, rank), out = emit.operand(op.out.id);
  // In a workgroup's memory, where the same stands once more, as codes or as floats.
  const int64_t merged_bytes = is_of_runs(emit[op.v_b.id]) ? 16384 : 8192;
  const bool merges = tiled || std::min<int64_t>(rows, 8) * rank * 4 > merged_bytes ||
                      stretches(emit.layout, emit.sizes).count > kMergedStretches;
  const Merge left = emit_attention(emit,
                                    {.q = whole,
                                     .cache = query.cache.id,
                                     .out = context,
                                     .scale = op.scale,
                                     .layer = query.cache_layer,
                                     .rotated = rotated_before ? nullptr : &last,
                                     .rope = &query.rope,
                                     .factors = query.factors.id},
                                    merges);
  emit.wait();
  emit_product(emit, {.in = context,
                      .weight = op.v_b.id,
                      .out = out,
                      .by_head = true,
                      .merge = left.stretches > 1 && !merges ? &left : nullptr});
}

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
  emit.add(std::move(dispatch));
}

void emit(Emit& emit, const MlaAttend& op) {
  emit_attention(emit,
                 {.q = emit.operand(op.q.id),
                  .cache = op.cache.id,
                  .out = emit.operand(op.out.id),
                  .scale = op.scale,
                  .layer = op.cache_layer},
                 true);
}

void emit(Emit& emit, const Attend& op) {
  emit_attention(emit,
                 {.q = emit.operand(op.q.id),
                  .cache = op.cache.id,
                  .out = emit.operand(op.out.id),
                  .sinks = op.sinks.id,
                  .kv_heads = op.kv_heads,
                  .values_at = op.kv_heads * emit[op.q.id].columns(),
                  .value_step = emit[op.out.id].columns(),
                  .scale = op.scale,
                  .window = op.window,
                  .layer = op.cache_layer},
                 true);
}

}  // namespace sluice::backend::vulkan
