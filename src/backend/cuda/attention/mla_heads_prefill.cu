// mla_heads of many rows: long prompts attend to expanded keys and values (attention/mla_expand.cu,
// attention/mla_expanded_attend.cu; without wgmma attention/mla_expanded_sm80.cu), other rows of the step in
// latent space, as mla_query, mla_attend and head_matmul would.
#include <algorithm>
#include <numbers>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_expanded.h"
#include "backend/cuda/attention/mla_query_gemm.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Keys and values at most: 57,000 positions of 20 heads of 192 + 256 columns at once, a quarter of that
/// where a device's memory is a desktop's; longer contexts go by groups of heads.
constexpr int64_t most_bytes(int architecture) {
  return architecture == 90 || architecture == 100 ? int64_t{1} << 30 : int64_t{1} << 28;
}

/// Heads that are expanded together; 0: not even one.
int64_t group_of(int64_t heads, int64_t columns, int64_t capacity, int64_t bytes) {
  const int64_t most = std::min(heads, bytes / (capacity * columns * 2));
  if (most == 0) return 0;
  const int64_t groups = (heads + most - 1) / most;
  return (heads + groups - 1) / groups;
}

/// Scratch of rows in latent space.
struct LatentScratch {
  float *queries, *context;
};
LatentScratch take_latent(Scratch& scratch, int64_t rows, int64_t heads) {
  return {scratch.take<float>(rows * heads * kMlaWidth), scratch.take<float>(rows * heads * kMlaRank)};
}

void take_expanded(Scratch& scratch, Expanded& e) {
  e.weights = scratch.take<char>(e.heads * e.weights_of_head());
  e.latents = scratch.take<char>(e.capacity * kExpandRank * 2);
  e.rotated = scratch.take<char>(e.capacity * kExpandRotated * 2);
  e.keys = scratch.take<char>(e.slots * e.capacity * e.nope * 2);
  e.values = scratch.take<char>(e.slots * e.capacity * e.value * 2);
}

Expanded expanded_of(const Program& p, const MlaHeads& op, const Sizes& sizes) {
  Expanded e{};
  e.heads = static_cast<int32_t>(p[op.out.id].heads());
  e.nope = static_cast<int32_t>(op.query.nope(p)), e.value = static_cast<int32_t>(p[op.out.id].columns());
  e.capacity = most_expanded(sizes.rows, sizes.longest);
  const int64_t bytes = most_bytes(sizes.architecture);
  e.slots = static_cast<int32_t>(group_of(e.heads, e.nope + e.value, e.capacity, bytes));
  return e;
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  const Tensor& out = p[op.out.id];
  const int64_t nope = op.query.nope(p), value = out.columns();
  return sizes.rows >= kPromptRows && mla_query_gemm_serves(p, op.query, sizes) &&
         op.query.rank(p) == kExpandRank && op.query.rope_columns(p) == kExpandRotated &&
         ((nope == 192 && value == 256) || (nope == 128 && value == 128)) && known(p, op.v_b.id) &&
         out.stride[0] % 4 == 0 && out.stride[1] % 4 == 0 && out.offset % 4 == 0 &&
         expanded_of(p, op, sizes).slots > 0;
}

/// Rows that are in no segment.
void attend_latent(const Program& p, const MlaHeads& op, const Rows<float>& queries, Scratch scratch,
                   const Context& c) {
  const int64_t heads = p[op.out.id].heads();
  const LatentScratch pieces = take_latent(scratch, c.step_rows, heads);
  const auto rows_of = [&](float* data, int64_t columns) {
    return Rows<float>{data, heads * columns, columns, static_cast<int32_t>(heads),
                       static_cast<int32_t>(columns)};
  };
  const Rows<float> latent = rows_of(pieces.queries, kMlaWidth), attended = rows_of(pieces.context, kMlaRank);
  Scratch for_queries = scratch;
  make_latent_queries(p, op.query, queries, latent, for_queries, c);
  const MlaArgs args{c.step,
                     c.memory.cache(op.query.cache.id),
                     latent,
                     attended,
                     op.query.cache_layer,
                     op.scale * std::numbers::log2e_v<float>,
                     1,
                     nullptr,
                     nullptr};
  has_wgmma() ? mla_attend_prefill(args, c) : mla_attend_sm80(args, c);
  multiply_dense({.in = attended,
                  .out = c.memory.rows(op.out.id),
                  .weight = c.memory.matrix(op.v_b.id),
                  .up = {},
                  .rows = c.step_rows,
                  .count = &c.step.header->rows},
                 c, scratch);
}

void launch_heads(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaHeads>(record.args);
  Scratch scratch(c.scratch);
  const Rows<float> queries = make_queries(p, op.query, p[op.out.id].heads(), scratch, c);
  if (!c.prompts_alone) {
    Context others = c;
    others.step.header = &c.step.prompts->others;
    attend_latent(p, op, queries, scratch, others);
  }

  Expanded e = expanded_of(p, op, c.sizes());
  e.step = c.step, e.cache = c.memory.cache(op.query.cache.id), e.layer = op.query.cache_layer;
  take_expanded(scratch, e);  // where the other rows' scratch was
  prepare_expansion(e, c.memory.matrix(op.query.k_b.id), c.memory.matrix(op.v_b.id), c);
  const RopeTable rope = rope_table(op.query.rope, kExpandRotated);
  const int32_t group = e.slots;
  for (e.first_head = 0; e.first_head < e.heads; e.first_head += group) {
    e.slots = std::min(group, e.heads - e.first_head);
    const AttendExpanded args{e, queries, c.memory.rows(op.out.id), c.memory.vector(op.query.factors.id),
                              op.scale * std::numbers::log2e_v<float>};
    if (has_wgmma()) {
      expand_heads(e, c);
      attend_expanded(args, rope, c);
    } else {
      mla_expand_sm80(e, c);
      mla_expanded_attend_sm80(args, rope, c);
    }
  }
}

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  const int64_t heads = p[op.out.id].heads();
  Scratch scratch(nullptr);
  take_queries(scratch, p, op.query, sizes.rows, heads);
  Scratch latent = scratch, expanded = scratch;
  take_latent(latent, sizes.rows, heads);
  const int64_t products = std::max(dense_scratch(sizes.rows, heads, op.query.nope(p)),
                                    dense_scratch(sizes.rows, heads, kMlaRank));
  Expanded e = expanded_of(p, op, sizes);
  take_expanded(expanded, e);
  return std::max(latent.bytes() + products, expanded.bytes());
}

}  // namespace

const Kernel kMlaHeadsPrefill{"prefill over expanded keys and values", serves, launch_heads, scratch_bytes};

}  // namespace sluice::backend::cuda
