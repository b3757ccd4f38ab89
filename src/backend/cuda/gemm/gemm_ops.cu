// Matmuls of steps of many rows (more rows than the decode kernels take) on tensor cores: activations are
// packed as halves once an op, then weights are multiplied as they lie (gemm/gemm_mma.cuh,
// gemm/gemm_wgmma.cuh). Experts' rows are brought into the order of the experts on the device; ids never
// reach the host.
#include <algorithm>
#include <vector>

#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/code_rows.h"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/gemv/matmul_add_small_batch.h"
#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/residual.h"
#include "backend/cuda/moe/add_experts_small_batch.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Tokens that an expert has to have on average for warpgroups to be worth their tiles.
constexpr int64_t kLargeExpertTokensLeast = 12;
/// The same for tiles of kSmallTileTokens to be enough for most experts.
constexpr int64_t kSmallBatchExpertTokens = 64;

// --- plain matrices ---

bool serves_matmul(const Program& p, const Op& op, const Sizes& sizes) {
  return sizes.rows > kNarrowRows && known(p, std::get<Matmul>(op.args).weight.id) &&
         p[std::get<Matmul>(op.args).weight.id].type !=
             quant::Type::F32;  // routers: their kernel counts in float32
}
void launch_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Matmul>(record.args);
  multiply_dense({.in = flat(c.memory.rows(op.in.id)),
                  .out = flat(c.memory.rows(op.out.id)),
                  .weight = c.memory.matrix(op.weight.id),
                  .up = {},
                  .rows = c.rows(p[op.in.id]),
                  .count = count_of(p, op.in.id, c.step)},
                 c, Scratch(c.scratch));
}
int64_t matmul_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  return dense_scratch(sizes.rows, 1, p[std::get<Matmul>(record.args).weight.id].columns());
}

/// Normed and packed once (for n-tiles once more), then multiplied: together where weights are alike.
bool serves_norm_matmul(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (sizes.rows <= kNarrowRows || p[op.in.id].columns() > kHeldColumns) return false;
  for (const auto& [weight, out] : op.products()) {
    if (weight && (!known(p, weight.id) || p[weight.id].type == quant::Type::F32)) return false;
  }
  return true;
}
void launch_norm_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (c.consumes != nullptr) return norm_matmul_q8(p, op, c);
  const Rows<float> in = flat(c.memory.rows(op.in.id));
  const int64_t rows = c.rows(p[op.in.id]);
  Scratch scratch(c.scratch);
  std::vector<Dense> products[2];  // of rows, of n-tiles
  for (const auto& [weight, out] : op.products()) {
    if (!weight) continue;
    const Dense d{.in = in,
                  .out = flat(c.memory.rows(out.id)),
                  .weight = c.memory.matrix(weight.id),
                  .up = {},
                  .rows = rows,
                  .count = count_of(p, op.in.id, c.step)};
    products[by_wgmma(d) ? 1 : 0].push_back(d);
  }
  for (const bool n_tiles : {false, true}) {
    const std::vector<Dense>& list = products[n_tiles ? 1 : 0];
    if (list.empty()) continue;
    const int64_t slots = slots_per_matrix(rows, n_tiles);
    const Packed packed = take_packed(scratch, slots, in.columns);
    PackPlan packing = packing_of(list[0], n_tiles, packed);
    packing.norm = c.memory.vector(op.norm.id), packing.epsilon = op.epsilon;
    pack_tokens(packing, slots, c);
    multiply_together(list, n_tiles, packed, c);
  }
}
int64_t norm_matmul_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  return 2 * dense_scratch(sizes.rows, 1, p[std::get<NormMatmul>(record.args).in.id].columns());
}

bool serves_matmul_add(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MatmulAdd>(record.args);
  return sizes.rows > kNarrowRows && known(p, op.weight.id);
}
/// Whether rows that do not come in codes are made codes, for the kernel of few rows.
bool matmul_add_codes_rows(const Program& p, const MatmulAdd& op, const Sizes& sizes) {
  const Tensor &in = p[op.in.id], &out = p[op.out.id];
  return sizes.rows <= kNTileTokens && in.shape[0] == kStepRows && out.shape[0] == kStepRows &&
         in.stride[0] % 4 == 0 && in.offset % 4 == 0 && serves_matmul_add_small_batch(p[op.weight.id], sizes);
}
/// Whether these rows are what a norm_matmul takes.
bool normed_behind(const Program& p, TensorId made) {
  return std::ranges::any_of(p.ops(), [&](const Op& op) {
    const auto* const behind = std::get_if<NormMatmul>(&op.args);
    return behind != nullptr && behind->in.id == made;
  });
}
void launch_matmul_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MatmulAdd>(record.args);
  const Rows<float> residual = residual_rows(c.memory, op.residual.id, op.out.id),
                    out = flat(c.memory.rows(op.out.id));
  const Matrix weight = c.memory.matrix(op.weight.id);
  const float* const bias = c.memory.vector(op.bias.id);
  const bool normed = normed_behind(p, op.out.id);
  const RouterSums sums = c.produces != nullptr && !normed ? router_sums(c, *c.produces) : RouterSums{};
  const bool comes_coded = c.consumes != nullptr;
  if (comes_coded || matmul_add_codes_rows(p, op, c.sizes())) {
    char* const codes = comes_coded ? c.consumes->at : c.scratch;
    if (!comes_coded)
      code_rows(
          {&c.step.header->rows, flat(c.memory.rows(op.in.id)), codes, coded_values_token(weight.columns)},
          c);
    return matmul_add_small_batch({&c.step.header->rows, codes, weight, residual, out, bias, sums,
                                   normed ? rows_for(c.produces, p, c) : NormedQ8Rows{}},
                                  c);
  }
  multiply_dense({.in = flat(c.memory.rows(op.in.id)),
                  .out = out,
                  .weight = weight,
                  .up = {},
                  .residual = residual.data,
                  .residual_stride = residual.row_stride,
                  .bias = bias,
                  .rows = c.rows(p[op.in.id]),
                  .count = count_of(p, op.in.id, c.step)},
                 c, Scratch(c.scratch));
  if (c.produces != nullptr) add_router_sums(&c.step.header->rows, out, sums, c);
}
/// The rows for the first products behind, or the sums of the router behind.
std::optional<FormSpec> matmul_add_gives(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MatmulAdd>(record.args);
  if (normed_behind(p, op.out.id)) {
    const bool codes = matmul_add_codes_rows(p, op, sizes) && p[op.out.id].columns() % int8_mma::kQuad == 0;
    return codes ? given_normed_codes(p, op.out.id, sizes) : std::nullopt;
  }
  if (sizes.rows > RouterSums::kRows || p[op.out.id].columns() % kRoutedOutputs != 0) return std::nullopt;
  return FormSpec{Form::RouterSums, op.out.id, 0};
}
std::optional<FormSpec> matmul_add_takes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MatmulAdd>(record.args);
  return serves_matmul_add_small_batch(p[op.weight.id], sizes) ? given_rows_codes(p, op.in.id, sizes)
                                                               : std::nullopt;
}
int64_t matmul_add_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MatmulAdd>(record.args);
  const int64_t columns = p[op.weight.id].columns();
  return matmul_add_codes_rows(p, op, sizes) ? sizes.rows * coded_values_token(columns).pitch
                                             : dense_scratch(sizes.rows, 1, columns);
}

bool serves_gate_up(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<GateUp>(record.args);
  return sizes.rows > kNarrowRows && alike(p, op.gate.id, op.up.id);
}
void launch_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<GateUp>(record.args);
  multiply_dense({.in = flat(c.memory.rows(op.in.id)),
                  .out = flat(c.memory.rows(op.out.id)),
                  .weight = c.memory.matrix(op.gate.id),
                  .up = c.memory.matrix(op.up.id),
                  .gated = true,
                  .rows = c.rows(p[op.in.id]),
                  .count = count_of(p, op.in.id, c.step)},
                 c, Scratch(c.scratch));
}
int64_t gate_up_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  return dense_scratch(sizes.rows, 1, p[std::get<GateUp>(record.args).gate.id].columns());
}

bool serves_head_matmul(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<HeadMatmul>(record.args);
  return sizes.rows > kNarrowRows && op.reduce == Reduce::Columns && known(p, op.weight.id);
}
void launch_head_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  multiply_dense({.in = c.memory.rows(op.in.id),
                  .out = c.memory.rows(op.out.id),
                  .weight = c.memory.matrix(op.weight.id),
                  .up = {},
                  .rows = c.rows(p[op.in.id]),
                  .count = count_of(p, op.in.id, c.step)},
                 c, Scratch(c.scratch));
}
int64_t head_matmul_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const Tensor& weight = p[std::get<HeadMatmul>(record.args).weight.id];
  return dense_scratch(sizes.rows, weight.shape[0], weight.columns());
}

// --- experts ---

/// The pairs of a step in the order of their experts.
struct Ordered {
  OrderPlan plan;
  int64_t entries, tiles;
  bool by_wgmma;
};
Ordered take_order(Scratch& scratch, int64_t rows, int64_t used, int64_t experts) {
  const int64_t pairs = rows * used, average = (pairs + experts - 1) / experts;
  Ordered order{};
  order.by_wgmma = average >= kLargeExpertTokensLeast && has_wgmma();
  // Few tokens an expert: tiles of twice the average, so that hardly any expert needs two.
  const int64_t of_warps = average <= 4 ? 8 : average <= 12 ? 16 : average * 2;
  const int32_t of_warpgroups = average <= kSmallBatchExpertTokens ? kSmallTileTokens : kLargeTokens;
  order.plan.tile_tokens = order.by_wgmma ? of_warpgroups : tile_for(of_warps);
  order.plan.used = static_cast<int32_t>(used), order.plan.experts = static_cast<int32_t>(experts);
  order.entries = list_entries(pairs, experts);
  order.tiles = list_tiles(pairs, experts, order.plan.tile_tokens);
  order.plan.list = scratch.take<int32_t>(order.entries);
  order.plan.tiles = scratch.take<TokenTile>(order.tiles);
  order.plan.counts = scratch.take<int32_t>(2);
  return order;
}
bool known_bias(const Program& p, Read bias) { return !bias || p[bias.id].type == quant::Type::F32; }
bool serves_moe_gate_up(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return sizes.rows > kNarrowRows && alike(p, op.gate.id, op.up.id) && known_bias(p, op.gate_bias) &&
         known_bias(p, op.up_bias) && (!op.shared_gate || alike(p, op.shared_gate.id, op.shared_up.id));
}

/// Whether these experts' products order and pack for themselves (moe/experts_small_batch.h).
bool small_batch_each(const Program& p, TensorId in, TensorId weight, TensorId up, int64_t used,
                      const Sizes& sizes) {
  const Tensor &w = p[weight], &x = p[in];
  const bool gated = up != kNoTensor;
  if (x.stride[0] % 4 != 0 || x.stride[1] % 4 != 0 || x.offset % 4 != 0) return false;
  return (!gated || p[up].type == w.type) &&
         serves_experts_small_batch({w.type, w.shape[0], w.shape[1], w.shape[2], used, gated}, sizes.rows,
                                    sizes.architecture);
}
bool gate_up_small_batch_each(const Program& p, const MoeGateUp& op, const Sizes& sizes) {
  return op.is_plain() && small_batch_each(p, op.in.id, op.gate.id, op.up.id, p[op.ids.id].columns(), sizes);
}
bool down_small_batch_each(const Program& p, const MoeDownAdd& op, const Sizes& sizes) {
  return !op.down_bias && small_batch_each(p, op.in.id, op.down.id, kNoTensor, p[op.ids.id].columns(), sizes);
}
/// Whether all is added up in one launch, in which shared experts, if any, are multiplied.
bool small_batch_at_last(const Program& p, const MoeDownAdd& op, const Sizes& sizes) {
  const int64_t used = p[op.ids.id].columns();
  if (!op.shared_in) return serves_add_routed_small_batch(p[op.out.id].columns(), used, sizes.rows);
  const Tensor &weight = p[op.shared_down.id], &in = p[op.shared_in.id];
  return in.stride[0] % 4 == 0 && in.offset % 4 == 0 &&
         serves_add_experts_small_batch(weight.type, weight.shape[1], weight.columns(), used, sizes.rows);
}

/// The order of a step's pairs: in scratch, or where it is handed over. The one from the launch before is
/// taken, any other made.
Ordered order_of(Scratch& scratch, TensorId ids, int64_t used, int64_t experts, const Context& c) {
  const FormBuffer* const form = c.consumes != nullptr ? c.consumes : c.produces;
  Scratch form_at(form != nullptr ? form->at : nullptr);
  Ordered order = take_order(form != nullptr ? form_at : scratch, c.step_rows, used, experts);
  order.plan.ids = c.memory.int_rows(ids);
  order.plan.rows = &c.step.header->rows;
  if (c.consumes == nullptr) order_pairs(order.plan, c);
  return order;
}
std::optional<FormSpec> given_order(const Program& p, TensorId ids, int64_t experts, const Sizes& sizes) {
  Scratch scratch(nullptr);
  take_order(scratch, sizes.rows, p[ids].columns(), experts);
  return FormSpec{Form::ExpertOrder, ids, scratch.bytes()};
}
/// Slots that the experts' tokens take: of the step's rows where a row is multiplied by all its experts, of
/// pairs, or of the list.
int64_t expert_slots(const Ordered& order, int64_t rows, bool by_pair) {
  return order.by_wgmma ? order.entries : by_pair ? rows * order.plan.used : whole_groups(rows);
}

/// How the rows that experts multiply are packed: in[r], or in[r, k] (by_pair).
PackPlan expert_packing(const Ordered& order, Rows<float> in, bool by_pair, int64_t rows,
                        const Packed& packed) {
  const OrderPlan& o = order.plan;
  if (order.by_wgmma) return {in, o.list, o.counts + 1, 0, o.used, by_pair, true, packed.data, packed.scale};
  if (by_pair) return {in, nullptr, o.rows, 0, o.used, true, false, packed.data, packed.scale};
  return {in,    nullptr,     o.rows,      static_cast<int32_t>(whole_groups(rows)), 1, false,
          false, packed.data, packed.scale};
}

/// out[r, k] = weight[ids[r, k]] times in[r], or in[r, k] (by_pair), which are packed. product: all but its
/// tokens, plan and sink.
void multiply_experts(const Ordered& order, Rows<float> in, bool by_pair, Product product, Rows<float> out,
                      const Packed& packed, const Context& c) {
  const OrderPlan& o = order.plan;
  product.tokens = tokens_of(packed, in.columns);
  product.plan = {
      o.tiles, o.counts, o.list, o.rows, 0, o.tile_tokens, order.by_wgmma ? 0 : by_pair ? 1 : o.used};
  product.sink = {out, nullptr, 0, o.used, 0};
  multiply_gemm(product, order.tiles, order.by_wgmma, c);
}

void launch_moe_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeGateUp>(record.args);
  const Rows<float> in = flat(c.memory.rows(op.in.id));
  const int64_t rows = c.step_rows;
  Scratch scratch(c.scratch);
  const Matrix gate = c.memory.matrix(op.gate.id);
  const auto shared_product = [&] {
    return Dense{.in = in,
                 .out = flat(c.memory.rows(op.shared_out.id)),
                 .weight = c.memory.matrix(op.shared_gate.id),
                 .up = c.memory.matrix(op.shared_up.id),
                 .gated = true,
                 .rows = rows,
                 .count = &c.step.header->rows};
  };
  if (gate_up_small_batch_each(p, op, c.sizes())) {
    if (op.shared_gate) multiply_dense(shared_product(), c, scratch);
    return multiply_experts_small_batch(
        {gate, c.memory.matrix(op.up.id), true, false, in, c.memory.rows(op.out.id),
         c.memory.int_rows(op.ids.id), &c.step.header->rows},
        c);
  }
  const Ordered order = order_of(scratch, op.ids.id, p[op.ids.id].columns(), gate.matrices, c);
  const Packed packed = take_packed(scratch, expert_slots(order, rows, false), in.columns);
  pack_tokens(expert_packing(order, in, false, rows, packed), expert_slots(order, rows, false), c);
  if (op.shared_gate) {
    const Dense shared = shared_product();
    if (order.by_wgmma || by_wgmma(shared)) {
      multiply_dense(shared, c, scratch);
    } else {
      multiply_packed(shared, false, packed, c);
    }
  }
  multiply_experts(order, in, false,
                   {.weight = gate,
                    .up = c.memory.matrix(op.up.id),
                    .gated = true,
                    .bias = floats_of(c.memory, op.gate_bias.id),
                    .up_bias = floats_of(c.memory, op.up_bias.id),
                    .scale = c.memory.vector(op.gate_scale.id),
                    .up_scale = c.memory.vector(op.up_scale.id),
                    .form = op.form},
                   c.memory.rows(op.out.id), packed, c);
}
int64_t moe_gate_up_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeGateUp>(record.args);
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, p[op.ids.id].columns(), p[op.gate.id].shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, false), p[op.gate.id].columns());
  return scratch.bytes() + (op.shared_gate ? dense_scratch(sizes.rows, 1, p[op.gate.id].columns()) : 0);
}

bool serves_expert_matmul(const Program& p, const Op& record, const Sizes& sizes) {
  return sizes.rows > kNarrowRows && known(p, std::get<ExpertMatmul>(record.args).weight.id);
}
void launch_expert_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id);
  const bool by_pair = in.heads > 1;
  Scratch scratch(c.scratch);
  const Matrix weight = c.memory.matrix(op.weight.id);
  const Ordered order = order_of(scratch, op.ids.id, p[op.ids.id].columns(), weight.matrices, c);
  const Packed packed = take_packed(scratch, expert_slots(order, c.step_rows, by_pair), in.columns);
  const int64_t slots = expert_slots(order, c.step_rows, by_pair);
  pack_tokens(expert_packing(order, in, by_pair, c.step_rows, packed), slots, c);
  multiply_experts(order, in, by_pair, {.weight = weight}, c.memory.rows(op.out.id), packed, c);
}
int64_t expert_matmul_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, p[op.ids.id].columns(), p[op.weight.id].shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, p[op.in.id].heads() > 1), p[op.weight.id].columns());
  return scratch.bytes();
}

bool serves_moe_down_add(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  return sizes.rows > kNarrowRows && p[op.ids.id].columns() <= kMostUsed && known(p, op.down.id) &&
         known_bias(p, op.down_bias) && (!op.shared_in || known(p, op.shared_down.id));
}
/// Shared experts and the residual first, then every pair's result by itself, then a row's pairs in the order
/// of ids (by add_experts_small_batch in that of the row's selection).
void launch_moe_down_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = flat(c.memory.rows(op.out.id));
  const Rows<float> residual = residual_rows(c.memory, op.residual.id, op.out.id);
  const int64_t rows = c.step_rows;
  Scratch scratch(c.scratch);
  const Matrix down = c.memory.matrix(op.down.id);
  const int64_t used = p[op.ids.id].columns();
  const Rows<int32_t> ids = c.memory.int_rows(op.ids.id);
  const auto shared_product = [&] {
    return Dense{.in = flat(c.memory.rows(op.shared_in.id)),
                 .out = out,
                 .weight = c.memory.matrix(op.shared_down.id),
                 .up = {},
                 .residual = residual.data,
                 .residual_stride = residual.row_stride,
                 .rows = rows,
                 .count = &c.step.header->rows};
  };
  const auto take_pairs = [&] {
    return Rows<float>{scratch.take<float>(rows * used * down.rows), used * down.rows, down.rows,
                       static_cast<int32_t>(used), down.rows};
  };
  const auto combined = [&](const Rows<float>& pairs) {
    return CombinePlan{op.shared_in ? out : residual, c.memory.rows(op.weights.id), out, ids, pairs.data,
                       &c.step.header->rows,          static_cast<int32_t>(used)};
  };
  if (down_small_batch_each(p, op, c.sizes())) {
    // Routed experts first: their weights are asked for while the op before is still at work. Rows of the
    // shared ones are packed beside.
    const Rows<float> pairs = take_pairs();
    ExpertsSmallBatch routed{.weight = down,
                             .up = {},
                             .gated = false,
                             .by_pair = true,
                             .in = in,
                             .out = pairs,
                             .ids = ids,
                             .rows = &c.step.header->rows,
                             .selection = c.consumes != nullptr ? c.mailbox(*c.consumes) : Mailbox{}};
    const bool at_last = small_batch_at_last(p, op, c.sizes());
    const auto add_up = [&](const Matrix& weight, const Tokens& tokens) {
      add_experts_small_batch({&c.step.header->rows, weight, tokens, residual, c.memory.rows(op.weights.id),
                               out, pairs.data, rows_for(c.produces, p, c)},
                              c);
    };
    if (!op.shared_in) {
      multiply_experts_small_batch(routed, c);
      return at_last ? add_up({}, {}) : combine_experts(combined(pairs), c);
    }
    const Dense shared = shared_product();
    const bool n_tiles = !at_last && by_wgmma(shared);
    const int64_t slots = slots_per_matrix(rows, n_tiles);
    const Packed packed = take_packed(scratch, slots, shared.in.columns);
    const PackPlan packing = packing_of(shared, n_tiles, packed);
    const bool beside = packs_beside(packing.in);
    if (beside) routed.beside = packing;
    multiply_experts_small_batch(routed, c);
    if (!beside) pack_tokens(packing, slots, c);
    if (at_last) return add_up(shared.weight, tokens_of(packed, shared.in.columns));
    if (multiply_and_combine(shared, n_tiles, packed, combined(pairs), c)) return;
    multiply_packed(shared, n_tiles, packed, c);
    return combine_experts(combined(pairs), c);
  }
  const Ordered order = order_of(scratch, op.ids.id, used, down.matrices, c);
  const int64_t slots = expert_slots(order, rows, true);
  const Packed packed = take_packed(scratch, slots, in.columns);
  const PackPlan packing = expert_packing(order, in, true, rows, packed);
  if (op.shared_in) {
    const Dense shared = shared_product();
    const bool n_tiles = by_wgmma(shared);
    const int64_t shared_slots = slots_per_matrix(rows, n_tiles);
    const Packed packed_shared = take_packed(scratch, shared_slots, shared.in.columns);
    pack_tokens(packing, slots, packing_of(shared, n_tiles, packed_shared), shared_slots, c);
    multiply_packed(shared, n_tiles, packed_shared, c);
  } else {
    pack_tokens(packing, slots, c);
  }
  const Rows<float> pairs = take_pairs();
  multiply_experts(order, in, true, {.weight = down, .bias = floats_of(c.memory, op.down_bias.id)}, pairs,
                   packed, c);
  combine_experts(combined(pairs), c);
}
int64_t moe_down_add_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Tensor& down = p[op.down.id];
  const int64_t used = p[op.ids.id].columns();
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, used, down.shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, true), down.columns());
  scratch.take<float>(sizes.rows * used * down.shape[1]);
  return scratch.bytes() + (op.shared_in ? dense_scratch(sizes.rows, 1, p[op.shared_down.id].columns()) : 0);
}

std::optional<FormSpec> moe_gate_up_gives(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return gate_up_small_batch_each(p, op, sizes) ? std::nullopt
                                                : given_order(p, op.ids.id, p[op.gate.id].shape[0], sizes);
}
std::optional<FormSpec> expert_matmul_takes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  return given_order(p, op.ids.id, p[op.weight.id].shape[0], sizes);
}
std::optional<FormSpec> moe_down_add_takes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  return down_small_batch_each(p, op, sizes) ? given_selection(p, op.ids.id, sizes)
                                             : given_order(p, op.ids.id, p[op.down.id].shape[0], sizes);
}
std::optional<FormSpec> moe_down_add_gives(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const bool codes = down_small_batch_each(p, op, sizes) && small_batch_at_last(p, op, sizes) &&
                     p[op.out.id].columns() % int8_mma::kQuad == 0;
  return codes ? given_normed_codes(p, op.out.id, sizes) : std::nullopt;
}

}  // namespace

const Kernel kMatmulGemm{"GEMM", serves_matmul, launch_matmul, matmul_scratch};
const Kernel kNormMatmulGemm{
    "GEMM of normed rows", serves_norm_matmul, launch_norm_matmul, norm_matmul_scratch, nullptr,
    takes_q8_rows};
const Kernel kMatmulAddGemm{"GEMM",           serves_matmul_add, launch_matmul_add, matmul_add_scratch,
                            matmul_add_gives, matmul_add_takes};
const Kernel kGateUpGemm{"gated GEMM", serves_gate_up, launch_gate_up, gate_up_scratch};
const Kernel kHeadMatmulGemm{"GEMM of heads", serves_head_matmul, launch_head_matmul, head_matmul_scratch};
const Kernel kMoeGateUpGemm{"grouped gated GEMM of experts", serves_moe_gate_up, launch_moe_gate_up,
                            moe_gate_up_scratch, moe_gate_up_gives};
const Kernel kExpertMatmulGemm{
    "grouped GEMM of experts", serves_expert_matmul, launch_expert_matmul, expert_matmul_scratch, nullptr,
    expert_matmul_takes};
const Kernel kMoeDownAddGemm{"grouped GEMM of experts, summed",
                             serves_moe_down_add,
                             launch_moe_down_add,
                             moe_down_add_scratch,
                             moe_down_add_gives,
                             moe_down_add_takes};

}  // namespace sluice::backend::cuda
