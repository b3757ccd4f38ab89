// Matmuls of wide steps (more rows than the decode kernels take) on matrix units: activations are packed as
// halves once an op, then weights are multiplied as they lie (prim/tiles_mma.cuh, prim/tiles_wgmma.cuh).
// Experts' rows are brought into the order of the experts on the device; ids never reach the host.
#include <algorithm>

#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/wide_parts.h"
#include "backend/cuda/prim/fragments.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Steps of more rows are wide.
constexpr int64_t kNarrowRows = 8;
/// Tokens that a matrix has to have (an expert: on average) for warpgroups to be worth their tiles.
constexpr int64_t kLargeTokensLeast = 96, kLargeExpertTokensLeast = 20;

/// Hands out pieces of a scratch buffer; without one it counts.
class Scratch {
 public:
  explicit Scratch(char* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

bool known(const Program& p, TensorId id) {
  Family family{};
  return family_of(p[id].type, family);
}
/// One kernel multiplies both: their codes are alike, their scales need not be.
bool alike(const Program& p, TensorId a, TensorId b) {
  Family one{}, other{};
  return family_of(p[a].type, one) && family_of(p[b].type, other) && one == other;
}

int32_t tile_for(int64_t tokens, bool by_wgmma) {
  if (by_wgmma) return kLargeTokens;
  return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
}

int64_t large_blocks(int64_t tokens, int64_t outputs, int64_t matrices, int64_t tile) {
  return (outputs + 127) / 128 * ((tokens + tile - 1) / tile) * matrices;
}
/// Whether one matrix's products fill a device with warpgroups, if need be with small tiles.
bool dense_by_wgmma(int64_t tokens, int64_t outputs, int64_t matrices) {
  return tokens >= kLargeTokensLeast && large_blocks(tokens, outputs, matrices, 64) >= 72 && has_wgmma();
}
/// Tokens of a tile of one matrix: as many as leave a device enough blocks of threads.
int32_t dense_tile(int64_t tokens, int64_t outputs, int64_t matrices, bool by_wgmma) {
  if (!by_wgmma) return tile_for(tokens, false);
  int32_t tile = kLargeTokens;
  while (tile > 64 && large_blocks(tokens, outputs, matrices, tile) < 100) tile /= 2;
  return tile;
}

struct Packed {
  uint16_t* data;
  float* scale;
};
Packed take_packed(Scratch& scratch, int64_t slots, int64_t columns) {
  return {scratch.take<uint16_t>(slots * padded_columns(columns)), scratch.take<float>(slots)};
}
Tokens tokens_of(const Packed& packed, int64_t columns) {
  return {packed.data, packed.scale, static_cast<int32_t>(padded_columns(columns) / kChunkColumns)};
}

int64_t whole_groups(int64_t rows) { return (rows + kGroupTokens - 1) / kGroupTokens * kGroupTokens; }

/// in as one head of all its columns: what lies without gaps counts as more columns.
Rows<float> flat(Rows<float> in) { return {in.data, in.row_stride, 0, 1, in.heads * in.columns}; }

const int32_t* count_of(const Program& p, TensorId id, const StepView& step) {
  return p[id].shape[0] == kOutputRows ? &step.header->outputs : &step.header->rows;
}

/// out = in times weight of every matrix (head); or gated; or plus residual.
struct Dense {
  Rows<float> in, out;
  Matrix weight, up;
  bool gated = false;
  const float* residual = nullptr;
  int64_t residual_stride = 0;
  int64_t rows;
  const int32_t* count;
};

void multiply_dense(const Dense& d, const Context& context, Scratch scratch) {
  const int64_t per_matrix = whole_groups(d.rows), heads = d.weight.matrices, slots = per_matrix * heads;
  const int64_t outputs = d.weight.rows * (d.gated ? 2 : 1);
  const bool by_wgmma = dense_by_wgmma(d.rows, outputs, heads);
  const Packed packed = take_packed(scratch, slots, d.in.columns);
  const auto per = static_cast<int32_t>(per_matrix);
  pack_tokens({d.in, nullptr, d.count, per, 1, false, by_wgmma, packed.data, packed.scale}, slots, context);
  const int32_t tile = dense_tile(d.rows, outputs, heads, by_wgmma);
  const TokenPlan plan{nullptr, nullptr, nullptr, d.count, per, tile, 0};
  const Sink sink{d.out, d.residual, d.residual_stride, 1, heads > 1 ? 1 : 0};
  multiply_wide({d.weight, d.up, d.gated, tokens_of(packed, d.in.columns), plan, sink},
                heads * ((per_matrix + tile - 1) / tile), by_wgmma, context);
}

int64_t dense_scratch(int64_t rows, int64_t heads, int64_t columns) {
  Scratch scratch(nullptr);
  take_packed(scratch, whole_groups(rows) * heads, columns);
  return scratch.bytes();
}

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

bool serves_matmul_add(const Program& p, const Op& op, const Sizes& sizes) {
  return sizes.rows > kNarrowRows && known(p, std::get<MatmulAdd>(op.args).weight.id);
}
void launch_matmul_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MatmulAdd>(record.args);
  const Rows<float> residual = c.memory.rows(op.residual.id);
  multiply_dense({.in = flat(c.memory.rows(op.in.id)),
                  .out = flat(c.memory.rows(op.out.id)),
                  .weight = c.memory.matrix(op.weight.id),
                  .up = {},
                  .residual = residual.data,
                  .residual_stride = residual.row_stride,
                  .rows = c.rows(p[op.in.id]),
                  .count = count_of(p, op.in.id, c.step)},
                 c, Scratch(c.scratch));
}
int64_t matmul_add_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  return dense_scratch(sizes.rows, 1, p[std::get<MatmulAdd>(record.args).weight.id].columns());
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
  order.plan.tile_tokens = tile_for(average <= 4 ? 8 : average <= 12 ? 16 : average * 2, order.by_wgmma);
  order.plan.used = static_cast<int32_t>(used), order.plan.experts = static_cast<int32_t>(experts);
  order.entries = list_entries(pairs, experts);
  order.tiles = list_tiles(pairs, experts, order.plan.tile_tokens);
  order.plan.list = scratch.take<int32_t>(order.entries);
  order.plan.tiles = scratch.take<TokenTile>(order.tiles);
  order.plan.counts = scratch.take<int32_t>(2);
  return order;
}
void start_order(Ordered& order, TensorId ids, const Context& c) {
  order.plan.ids = c.memory.int_rows(ids);
  order.plan.rows = &c.step.header->rows;
  order_pairs(order.plan, c);
}
/// Slots that the experts' tokens take: of the step's rows where a row is multiplied by all its experts, of
/// pairs, or of the list.
int64_t expert_slots(const Ordered& order, int64_t rows, bool by_pair) {
  return order.by_wgmma ? order.entries : by_pair ? rows * order.plan.used : whole_groups(rows);
}

/// out[r, k] = weight[ids[r, k]] times in[r], or in[r, k] (by_pair).
void multiply_experts(const Ordered& order, Rows<float> in, bool by_pair, const Matrix& weight,
                      const Matrix& up, bool gated, Rows<float> out, int64_t rows, const Packed& packed,
                      const Context& c) {
  const OrderPlan& o = order.plan;
  PackPlan pack{in,    nullptr,     o.rows,      static_cast<int32_t>(whole_groups(rows)), 1, false,
                false, packed.data, packed.scale};
  if (order.by_wgmma) {
    pack = {in, o.list, o.counts + 1, 0, o.used, by_pair, true, packed.data, packed.scale};
  } else if (by_pair) {
    pack = {in, nullptr, o.rows, 0, o.used, true, false, packed.data, packed.scale};
  }
  pack_tokens(pack, expert_slots(order, rows, by_pair), c);
  const TokenPlan plan{
      o.tiles, o.counts, o.list, o.rows, 0, o.tile_tokens, order.by_wgmma ? 0 : by_pair ? 1 : o.used};
  multiply_wide({weight, up, gated, tokens_of(packed, in.columns), plan, {out, nullptr, 0, o.used, 0}},
                order.tiles, order.by_wgmma, c);
}

bool serves_moe_gate_up(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return sizes.rows > kNarrowRows && alike(p, op.gate.id, op.up.id) &&
         (!op.shared_gate || alike(p, op.shared_gate.id, op.shared_up.id));
}
void launch_moe_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeGateUp>(record.args);
  const Rows<float> in = flat(c.memory.rows(op.in.id));
  const int64_t rows = c.step_rows;
  if (op.shared_gate) {
    multiply_dense({.in = in,
                    .out = flat(c.memory.rows(op.shared_out.id)),
                    .weight = c.memory.matrix(op.shared_gate.id),
                    .up = c.memory.matrix(op.shared_up.id),
                    .gated = true,
                    .rows = rows,
                    .count = &c.step.header->rows},
                   c, Scratch(c.scratch));
  }
  Scratch scratch(c.scratch);
  const Matrix gate = c.memory.matrix(op.gate.id);
  Ordered order = take_order(scratch, rows, p[op.ids.id].columns(), gate.matrices);
  start_order(order, op.ids.id, c);
  const Packed packed = take_packed(scratch, expert_slots(order, rows, false), in.columns);
  multiply_experts(order, in, false, gate, c.memory.matrix(op.up.id), true, c.memory.rows(op.out.id), rows,
                   packed, c);
}
int64_t moe_gate_up_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeGateUp>(record.args);
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, p[op.ids.id].columns(), p[op.gate.id].shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, false), p[op.gate.id].columns());
  return std::max(scratch.bytes(), dense_scratch(sizes.rows, 1, p[op.gate.id].columns()));
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
  Ordered order = take_order(scratch, c.step_rows, p[op.ids.id].columns(), weight.matrices);
  start_order(order, op.ids.id, c);
  const Packed packed = take_packed(scratch, expert_slots(order, c.step_rows, by_pair), in.columns);
  multiply_experts(order, in, by_pair, weight, {}, false, c.memory.rows(op.out.id), c.step_rows, packed, c);
}
int64_t expert_matmul_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, p[op.ids.id].columns(), p[op.weight.id].shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, true), p[op.weight.id].columns());
  return scratch.bytes();
}

bool serves_moe_down_add(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  return sizes.rows > kNarrowRows && p[op.ids.id].columns() <= kMostUsed && known(p, op.down.id) &&
         (!op.shared_in || known(p, op.shared_down.id));
}
/// Shared experts and the residual first, then every pair's result by itself, then a row's pairs in the order
/// of ids.
void launch_moe_down_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = flat(c.memory.rows(op.out.id));
  const Rows<float> residual = c.memory.rows(op.residual.id);
  const int64_t rows = c.step_rows;
  if (op.shared_in) {
    multiply_dense({.in = flat(c.memory.rows(op.shared_in.id)),
                    .out = out,
                    .weight = c.memory.matrix(op.shared_down.id),
                    .up = {},
                    .residual = residual.data,
                    .residual_stride = residual.row_stride,
                    .rows = rows,
                    .count = &c.step.header->rows},
                   c, Scratch(c.scratch));
  }
  Scratch scratch(c.scratch);
  const Matrix down = c.memory.matrix(op.down.id);
  const int64_t used = p[op.ids.id].columns();
  Ordered order = take_order(scratch, rows, used, down.matrices);
  start_order(order, op.ids.id, c);
  const Packed packed = take_packed(scratch, expert_slots(order, rows, true), in.columns);
  auto* const each = scratch.take<float>(rows * used * down.rows);
  const Rows<float> pairs{each, used * down.rows, down.rows, static_cast<int32_t>(used), down.rows};
  multiply_experts(order, in, true, down, {}, false, pairs, rows, packed, c);
  combine_experts({op.shared_in ? out : residual, c.memory.rows(op.weights.id), out, order.plan.ids, each,
                   &c.step.header->rows, static_cast<int32_t>(used)},
                  c);
}
int64_t moe_down_add_scratch(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Tensor& down = p[op.down.id];
  const int64_t used = p[op.ids.id].columns();
  Scratch scratch(nullptr);
  const Ordered order = take_order(scratch, sizes.rows, used, down.shape[0]);
  take_packed(scratch, expert_slots(order, sizes.rows, true), down.columns());
  scratch.take<float>(sizes.rows * used * down.shape[1]);
  const int64_t shared = op.shared_in ? dense_scratch(sizes.rows, 1, p[op.shared_down.id].columns()) : 0;
  return std::max(scratch.bytes(), shared);
}

}  // namespace

const Kernel kMatmulWide{"matmul on matrix units", serves_matmul, launch_matmul, matmul_scratch};
const Kernel kMatmulAddWide{"matmul on matrix units", serves_matmul_add, launch_matmul_add,
                            matmul_add_scratch};
const Kernel kGateUpWide{"gated matmul on matrix units", serves_gate_up, launch_gate_up, gate_up_scratch};
const Kernel kHeadMatmulWide{"matmul of heads on matrix units", serves_head_matmul, launch_head_matmul,
                             head_matmul_scratch};
const Kernel kMoeGateUpWide{"gated matmul of experts on matrix units", serves_moe_gate_up, launch_moe_gate_up,
                            moe_gate_up_scratch};
const Kernel kExpertMatmulWide{"matmul of experts on matrix units", serves_expert_matmul,
                               launch_expert_matmul, expert_matmul_scratch};
const Kernel kMoeDownAddWide{"matmul of experts on matrix units, summed", serves_moe_down_add,
                             launch_moe_down_add, moe_down_add_scratch};

}  // namespace sluice::backend::cuda
