// mla_query of several rows, in four launches where its parts would be nine: rows are normed and packed while
// others' latents and keys go into the cache; q; queries' rotary columns are rotated and the others packed;
// k_b. The products are those of gemm/gemm_ops.cu; what stands here is bound by latency.
#include "backend/cuda/attention/mla_query_gemm.h"

#include "backend/cuda/attention/append_row.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kPackWarps = kPackThreads / 32;

/// The first `slots` blocks pack a row each, the others append one.
__global__ void __launch_bounds__(kPackThreads)
    prepare_rows(const Timestamps timestamps, const PackPlan packing, int slots, const CacheRows rows,
                 const __grid_constant__ RopeTable rope) {
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x), row = block - slots;
  const bool appends = row >= 0 && row < rows.step.header->rows;
  RowToAppend ahead{};
  if (appends) ahead = row_to_append(rows, rope, row);
  pdl.wait();
  if (block < slots) pack_slot<kPackWarps>(packing, block);
  if (appends) append_row(rows, rope, row, ahead);
}

/// A head of a row: the first `slots` warps pack its first columns, the others turn those to turn.
__global__ void __launch_bounds__(kPackThreads)
    rotate_queries(const Timestamps timestamps, const PackPlan packing, int slots, const StepView step,
                   Rows<float> queries, Rows<float> rotated, const float* factors,
                   const __grid_constant__ RopeTable rope) {
  const PdlLink pdl(timestamps);
  const int task = static_cast<int>(blockIdx.x) * kPackWarps + threadIdx.x / 32, slot = task - slots;
  const int row = slot % packing.per_matrix, head = slot / packing.per_matrix, half = rotated.columns / 2;
  const int lane = threadIdx.x % 32;
  const bool rotates = slot >= 0 && slot < slots && row < step.header->rows;
  const int position = rotates ? step.positions[row] : 0;
  SinCos sin_cos{};
  if (rotates && lane < half) sin_cos = rope.sin_cos(position, lane, factors);
  pdl.wait();
  if (task < slots) return pack_slot<1>(packing, task);
  if (!rotates) return;
  const float* const from = queries(row, head);
  float* const to = rotated(row, head);
  for (int i = lane; i < half; i += 32) {
    if (i != lane) sin_cos = rope.sin_cos(position, i, factors);
    const int first = rope.first(i), second = rope.second(i, half);
    const float a = from[first], b = from[second];
    to[first] = a * sin_cos.cosine - b * sin_cos.sine;
    to[second] = a * sin_cos.sine + b * sin_cos.cosine;
  }
}

/// Columns [first, first + count) of the heads.
Rows<float> part(const Rows<float>& rows, int64_t first, int64_t count) {
  return {rows.data + first, rows.row_stride, rows.head_stride, rows.heads, static_cast<int32_t>(count)};
}

Packed take_heads(Scratch& scratch, const Program& p, const MlaQuery& op, int64_t rows, int64_t heads) {
  return take_packed(scratch, whole_groups(rows) * heads, op.nope(p));
}

void launch_query(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaQuery>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id);
  Scratch scratch(c.scratch);
  const Rows<float> queries = make_queries(p, op, out.heads, scratch, c);
  make_latent_queries(p, op, queries, out, scratch, c);
}

int64_t query_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaQuery>(record.args);
  Scratch scratch(nullptr);
  take_queries(scratch, p, op, sizes.rows, p[op.out.id].heads());
  take_heads(scratch, p, op, sizes.rows, p[op.out.id].heads());
  return scratch.bytes();
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  return mla_query_gemm_serves(p, std::get<MlaQuery>(record.args), sizes);
}

}  // namespace

QueryScratch take_queries(Scratch& scratch, const Program& p, const MlaQuery& op, int64_t rows,
                          int64_t heads) {
  if (!op.q) return {};
  const Packed packed = take_packed(scratch, whole_groups(rows), p[op.in.id].columns());
  return {packed, scratch.take<float>(rows * heads * (op.nope(p) + op.rope_columns(p)))};
}

Rows<float> make_queries(const Program& p, const MlaQuery& op, int64_t heads, Scratch& scratch,
                         const Context& c) {
  const Memory& memory = c.memory;
  const int64_t rows = c.step_rows, width = op.nope(p) + op.rope_columns(p);
  const QueryScratch pieces = take_queries(scratch, p, op, rows, heads);
  const CacheRows appended{c.step,
                           memory.cache(op.cache.id),
                           op.cache_layer,
                           static_cast<int32_t>(op.rank(p)),
                           memory.rows(op.kv.id),
                           memory.vector(op.kv_norm.id),
                           memory.vector(op.factors.id),
                           op.epsilon};
  Rows<float> queries = memory.rows(op.in.id);
  Dense q{
      .in = flat(queries), .out = {}, .weight = {}, .up = {}, .rows = rows, .count = &c.step.header->rows};
  PackPlan packing{};
  int64_t slots = 0;
  bool n_tiles = false;
  if (op.q) {
    queries = {pieces.queries, heads * width, width, static_cast<int32_t>(heads),
               static_cast<int32_t>(width)};
    q.weight = memory.matrix(op.q.id), q.out = flat(queries);
    n_tiles = by_wgmma(q);
    slots = slots_per_matrix(rows, n_tiles);
    packing = packing_of(q, n_tiles, pieces.rows);
    packing.norm = memory.vector(op.q_norm.id), packing.epsilon = op.epsilon;
  }
  launch(c, prepare_rows, {dim3(static_cast<unsigned>(slots + rows)), dim3(kPackThreads)}, packing,
         static_cast<int>(slots), appended, rope_table(op.rope, op.rope_columns(p)));
  if (op.q) multiply_packed(q, n_tiles, pieces.rows, c);
  return queries;
}

void make_latent_queries(const Program& p, const MlaQuery& op, const Rows<float>& queries,
                         const Rows<float>& out, Scratch& scratch, const Context& c) {
  const int64_t rows = c.step_rows, heads = out.heads, rank = op.rank(p), nope = op.nope(p);
  const int64_t rotated = op.rope_columns(p);
  const Packed packed = take_heads(scratch, p, op, rows, heads);
  const Dense k{.in = part(queries, 0, nope),
                .out = part(out, 0, rank),
                .weight = c.memory.matrix(op.k_b.id),
                .up = {},
                .rows = rows,
                .count = &c.step.header->rows};
  const bool n_tiles = by_wgmma(k);
  const int64_t slots = slots_per_matrix(rows, n_tiles) * heads;
  launch(c, rotate_queries,
         {dim3(static_cast<unsigned>((2 * slots + kPackWarps - 1) / kPackWarps)), dim3(kPackThreads)},
         packing_of(k, n_tiles, packed), static_cast<int>(slots), c.step, part(queries, nope, rotated),
         part(out, rank, rotated), c.memory.vector(op.factors.id), rope_table(op.rope, rotated));
  multiply_packed(k, n_tiles, packed, c);
}

bool mla_query_gemm_serves(const Program& p, const MlaQuery& op, const Sizes& sizes) {
  const auto multiplied = [&](TensorId id) { return known(p, id) && p[id].type != quant::Type::F32; };
  const quant::CacheRow row = p[op.cache.id].cache_row();
  return sizes.rows > kNarrowRows && (row.type == quant::Type::F16 || row.coded() == op.rank(p)) &&
         op.k_b_reduce == Reduce::Columns && multiplied(op.k_b.id) &&
         (!op.q || (multiplied(op.q.id) && p[op.in.id].columns() <= kHeldColumns)) &&
         op.nope(p) <= 4 * kChunkColumns && op.rope_columns(p) <= 2 * RopeTable::kMostPairs;
}

const Kernel kMlaQueryGemm{"queries by GEMMs", serves, launch_query, query_scratch};

}  // namespace sluice::backend::cuda
