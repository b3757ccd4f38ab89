// norm_mla_heads of one row or two: whether a kernel serves, what it gets. The kernels:
// norm_mla_heads_ctx512.cuh and, over a long context, norm_mla_heads_ctx8k.cu.
#include <algorithm>

#include "backend/cuda/attention/norm_mla_heads.cuh"
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace first_half;

/// Of the mailbox, of a row over a short context.
int64_t flagged_slots(int64_t low, int64_t heads, int64_t blocks) {
  return kQuerySlots + low + heads * blocks * (kRank + 2);
}

/// How `blocks` blocks a head share the work.
void share_out(Args& args, int blocks) {
  MlaHeadsArgs& h = args.heads;
  const int shares = h.nope / kShare;
  h.cluster = blocks;
  h.each = ((h.out.columns + blocks - 1) / blocks + 31) / 32 * 32;
  args.shared = std::min(shares, blocks);
  args.head_slots = blocks * (kRank + 2);
  args.row_slots = static_cast<int>(flagged_slots(args.a.rows, h.out.heads, blocks));
  args.zeroed_row_slots = kCountedSlots;
  for (int rank = 0; rank < blocks; ++rank) {
    Share& share = args.shares[rank];
    share.shares = (shares - rank + blocks - 1) / blocks;
    share.rotated = kRotated * rank / blocks;
    share.count = share.shares * kShare + kRotated * (rank + 1) / blocks - share.rotated;
  }
  // As many lanes a row as leave every warp no more than a task.
  const auto tasks = [&](const Matrix& m) { return RowShape{args.columns / 32, args.lanes, m.rows}.tasks(); };
  for (args.lanes = lanes_for(args.columns); args.lanes > 8; args.lanes /= 2) {
    if (tasks(args.a) + tasks(args.b) <= h.out.heads * blocks * kWarps) break;
  }
  args.a_tasks = tasks(args.a), args.tasks = args.a_tasks + tasks(args.b);
}

void launch_norm_mla_heads(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMlaHeads>(record.args);
  const Memory& memory = context.memory;
  const MlaQuery& query = op.heads.query;
  Args args{};
  args.a = memory.matrix(op.products.a.id), args.b = memory.matrix(op.products.b.id);
  const Rows<float> in = memory.rows(op.products.in.id);
  args.in = in.data, args.in_stride = in.row_stride, args.norm = memory.vector(op.products.norm.id);
  args.epsilon = op.products.epsilon, args.columns = args.a.columns;
  args.mailbox = context.mailbox();
  MlaHeadsArgs& h = args.heads;
  h.nope = static_cast<int>(query.nope(program));
  h.step = context.step;
  h.out = memory.rows(op.heads.out.id);
  h.q_norm = memory.vector(query.q_norm.id), h.kv_norm = memory.vector(query.kv_norm.id);
  h.factors = memory.vector(query.factors.id);
  if (query.q) h.q = memory.matrix(query.q.id), h.in.columns = h.q.columns;
  h.k_b = memory.matrix(query.k_b.id), h.v_b = memory.matrix(op.heads.v_b.id);
  h.cache = memory.cache(query.cache.id);
  h.layer = query.cache_layer, h.epsilon = query.epsilon, h.scale = op.heads.scale;
  h.rope = rope_table(query.rope, kRotated);
  if (context.produces != nullptr) h.form_at = context.produces->at;
  args.coded = coded_values_token(int64_t{h.out.heads} * h.out.columns);
  const bool is_ctx512 = context.longest <= kCtx512;
  share_out(args, is_ctx512 ? blocks_of_head(h.out.heads, context.sm_count)
                            : ctx8k_blocks_of_head(h.out.heads, context.step_rows, context.sm_count));
  if (!is_ctx512) return start_long_context(args, context);
  with_types(args, [&]<typename Low, typename Q, typename K, typename V>(Types<Low, Q, K, V>) {
    start_ctx512<Low, Q, K, V>(args, context);
  });
}

/// Two rows share the SMs. Measured with these types alone (takes_two_rows).
bool serves_two_rows(const Program& program, const NormMlaHeads& op, const Sizes& sizes) {
  using quant::Type;
  const MlaQuery& query = op.heads.query;
  const auto are = [&](Type type, std::initializer_list<TensorId> weights) {
    return std::ranges::all_of(weights, [&](TensorId id) { return program[id].type == type; });
  };
  if ((sizes.architecture != 90 && sizes.architecture != 100) || !query.q) return false;
  const std::initializer_list<TensorId> first = {op.products.a.id, op.products.b.id, query.q.id};
  return (are(Type::Q4_0, first) && are(Type::Q8_0, {query.k_b.id, op.heads.v_b.id})) ||
         (are(Type::Q4_K, first) && are(Type::Q5_0, {query.k_b.id}) && are(Type::Q4_K, {op.heads.v_b.id}));
}

bool serves_norm_mla_heads(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMlaHeads>(record.args);
  const MlaQuery& query = op.heads.query;
  const quant::CacheRow row = program[query.cache.id].cache_row();
  if (row.type == quant::Type::Q8_0 && row.coded() != kRank) return false;
  if (sizes.rows > (serves_two_rows(program, op, sizes) ? kMostRows : 1)) return false;
  if (query.k_b_reduce != Reduce::Columns) return false;
  for (const TensorId id : {op.products.a.id, op.products.b.id, query.q ? query.q.id : query.k_b.id,
                            query.k_b.id, op.heads.v_b.id}) {
    const double blocks = program.elements(program.storage(id), {}) / 32;
    if (find_format(program[id].type) == nullptr || blocks >= double{1u << 31}) return false;
  }
  const Tensor &a = program[op.products.a.id], &out = program[op.heads.out.id];
  const int64_t nope = query.nope(program), low = query.q ? program[query.q.id].columns() : 0;
  return query.rank(program) == kRank && query.rope_columns(program) == kRotated && nope > 0 &&
         nope % kShare == 0 && nope <= kMostShares * kShare && low % 32 == 0 &&
         (sizes.longest > kCtx512 ? long_context_serves(program, op, sizes)
                                  : low <= ctx512_low_columns(sizes.architecture)) &&
         a.columns() <= kMostColumns && a.columns() % 32 == 0 && a.shape[1] <= kMostLow &&
         program[op.products.in.id].offset % 4 == 0 && out.heads() <= kMostHeads &&
         out.heads() <= sizes.sm_count && out.columns() <= kMostValues;
}

std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes& sizes) {
  const TensorId out = std::get<NormMlaHeads>(record.args).heads.out.id;
  const std::optional<FormSpec> one = given_row_codes(program, out);
  return one && sizes.rows > 1 ? given_rows_codes(program, out, sizes) : one;
}
MailboxNeeds mailbox(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMlaHeads>(record.args);
  const int64_t heads = program[op.heads.out.id].heads(), blocks = blocks_of_head(heads, sizes.sm_count);
  const bool is_ctx512 = sizes.longest <= kCtx512;
  const Ctx8kSlots parts = is_ctx512 ? Ctx8kSlots{} : ctx8k_slots(heads, sizes.rows, sizes.sm_count);
  const int64_t low = program[op.products.a.id].shape[1];
  return {.flagged = sizes.rows * (is_ctx512 ? flagged_slots(low, heads, blocks) : kQuerySlots + low),
          .zeroed = sizes.rows * (kCountedSlots + parts.slots),
          .layout = parts.layout};
}

}  // namespace

const Kernel kNormMlaHeads{"from the row to its heads' values, blocks a head",
                           serves_norm_mla_heads,
                           launch_norm_mla_heads,
                           nullptr,
                           produces,
                           nullptr,
                           mailbox};

}  // namespace sluice::backend::cuda
