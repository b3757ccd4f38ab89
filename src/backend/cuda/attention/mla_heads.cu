// mla_heads for one row, and its first half, mla_query: which kernels, and what they get.
#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads.cuh"
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/activations.cuh"
#include "backend/cuda/prim/cluster.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kRotated = kMlaWidth - kMlaRank;

/// The arguments of everything before the values.
MlaHeadsArgs query_args(const Program& program, const MlaQuery& op, const Rows<float>& out,
                        const Context& context) {
  const Memory& memory = context.memory;
  MlaHeadsArgs args{};
  args.nope = static_cast<int>(op.nope(program));
  args.step = context.step;
  args.in = memory.rows(op.in.id), args.out = out;
  args.kv = memory.rows(op.kv.id).data;
  args.q_norm = memory.vector(op.q_norm.id), args.kv_norm = memory.vector(op.kv_norm.id);
  args.factors = memory.vector(op.factors.id);
  if (op.q) args.q = memory.matrix(op.q.id);
  args.k_b = memory.matrix(op.k_b.id);
  args.cache = memory.cache(op.cache.id);
  args.layer = op.cache_layer, args.epsilon = op.epsilon;
  args.rope = rope_table(op.rope, kRotated);
  args.cluster = (args.nope + kRotated) / kQueriesOfBlock;
  return args;
}

void launch_mla_query(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MlaQuery>(record.args);
  start_clusters(query_args(program, op, context.memory.rows(op.out.id), context), context);
}
MlaHeadsArgs heads_args(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MlaHeads>(record.args);
  const Rows<float> out = context.memory.rows(op.out.id);
  MlaHeadsArgs args = query_args(program, op.query, out, context);
  args.scale = op.scale;
  args.v_b = context.memory.matrix(op.v_b.id);
  args.each = ((out.columns + args.cluster - 1) / args.cluster + 31) / 32 * 32;
  if (context.produces != nullptr) args.form_at = context.produces->at;
  return args;
}
void launch_mla_heads(const Program& program, const Op& record, const Context& context) {
  start_clusters(heads_args(program, record, context), context);
}
void launch_mla_heads_split_kv(const Program& program, const Op& record, const Context& context) {
  start_split_kv(heads_args(program, record, context), context);
}

void launch_mla_heads_sm80(const Program& program, const Op& record, const Context& context) {
  const MlaQuery& query = std::get<MlaHeads>(record.args).query;
  const Memory& memory = context.memory;
  const CacheRows appended{context.step,
                           memory.cache(query.cache.id),
                           query.cache_layer,
                           kMlaRank,
                           memory.rows(query.kv.id),
                           memory.vector(query.kv_norm.id),
                           memory.vector(query.factors.id),
                           query.epsilon};
  start_sm80(heads_args(program, record, context), appended, context);
}

/// Whether kernels of one row know queries of this shape, and these values (or kNoTensor).
bool gemv_serves(const Program& program, const MlaQuery& op, TensorId v_b, const Sizes& sizes) {
  const quant::CacheRow row = program[op.cache.id].cache_row();
  if (row.type == quant::Type::Q8_0 && row.coded() != kMlaRank) return false;
  if (sizes.rows > 1 || op.k_b_reduce != Reduce::Columns) return false;
  const auto is_blocked = [&](TensorId id) { return find_format(program[id].type) != nullptr; };
  if (!is_blocked(op.k_b.id) || (op.q && !is_blocked(op.q.id)) || (v_b != kNoTensor && !is_blocked(v_b)))
    return false;
  const int64_t nope = op.nope(program);
  return op.rank(program) == kMlaRank && op.rope_columns(program) == kRotated &&
         nope % kQueriesOfBlock == 0 && nope > 0 && nope <= kMostNope &&
         (!op.q || program[op.in.id].columns() <= kMostQueryColumns);
}
static_assert((kMostNope + kRotated) / kQueriesOfBlock == kMostInCluster);
/// The same of a cluster a head.
bool clusters_serve(const Program& program, const MlaQuery& op, TensorId v_b, const Sizes& sizes) {
  return sizes.architecture >= 90 && kClusterBytes <= most_shared(sizes.architecture) &&
         gemv_serves(program, op, v_b, sizes);
}
bool serves_mla_query(const Program& program, const Op& record, const Sizes& sizes) {
  return clusters_serve(program, std::get<MlaQuery>(record.args), kNoTensor, sizes);
}
bool serves_mla_heads(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  return sizes.longest <= kCtx512 && program[op.out.id].columns() <= kHeadThreads &&
         clusters_serve(program, op.query, op.v_b.id, sizes);
}
bool serves_mla_heads_split_kv(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  const bool coded = program[op.query.cache.id].cache_row().type == quant::Type::Q8_0;
  return sizes.longest > kCtx512 && (sizes.architecture == 90 || sizes.architecture == 100) &&
         split_kv_fits(program[op.out.id].heads(), coded) &&
         clusters_serve(program, op.query, op.v_b.id, sizes);
}
bool serves_mla_heads_sm80(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  return gemv_serves(program, op.query, op.v_b.id, sizes);
}

std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes&) {
  return given_row_codes(program, std::get<MlaHeads>(record.args).out.id);
}
int64_t scratch_bytes_split_kv(const Program& program, const Op& record, const Sizes&) {
  const Tensor& out = program[std::get<MlaHeads>(record.args).out.id];
  return split_kv_scratch_bytes(out.heads());
}
int64_t scratch_bytes_sm80(const Program& program, const Op& record, const Sizes&) {
  const Tensor& out = program[std::get<MlaHeads>(record.args).out.id];
  return sm80_scratch_bytes(out.heads());
}

}  // namespace

std::optional<FormSpec> given_row_codes(const Program& program, TensorId values) {
  const Tensor& tensor = program[values];
  if (tensor.columns() % 32 != 0) return std::nullopt;  // a head's, where there are several
  return FormSpec{Form::RowCodes, values,
                  Activations::bytes_size(static_cast<int>(tensor.heads() * tensor.columns()))};
}

const Kernel kMlaQuery{"queries, a cluster a head", serves_mla_query, launch_mla_query};
const Kernel kMlaHeads{"a cluster a head", serves_mla_heads, launch_mla_heads, nullptr, produces};
const Kernel kMlaHeadsSplitKv{"queries by a cluster a head, split-KV attention, values",
                              serves_mla_heads_split_kv, launch_mla_heads_split_kv, scratch_bytes_split_kv,
                              produces};
const Kernel kMlaHeadsSm80{"queries, split-KV attention by half pages, values", serves_mla_heads_sm80,
                           launch_mla_heads_sm80, scratch_bytes_sm80, produces};

}  // namespace sluice::backend::cuda
