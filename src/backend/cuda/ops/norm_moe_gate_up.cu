// norm_moe_gate_up of one row: norm, router, selection and the experts' gated products in one launch
// (one_row_gated.cu). Other steps expand it.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "backend/cuda/format.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/one_row.h"
#include "backend/cuda/prim/board.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

bool serves_norm_moe_gate_up(const Program& program, const Op& record, const Sizes& sizes);

/// The list's matmul_adds whose row the norm_moe_gate_up behind them routes.
struct Routed {
  const MatmulAdd* add;
  const Op* record;  ///< norm_moe_gate_up
  const NormRoute& route() const { return std::get<NormMoeGateUp>(record->args).route; }
};
std::vector<Routed> routed_rows(const Program& program) {
  std::vector<Routed> rows;
  for (size_t i = 1; i < program.ops().size(); ++i) {
    const Op &before = program.ops()[i - 1], &record = program.ops()[i];
    const auto* add = std::get_if<MatmulAdd>(&before.args);
    const auto* gate_up = std::get_if<NormMoeGateUp>(&record.args);
    if (add != nullptr && gate_up != nullptr && gate_up->route.in.id == add->out.id)
      rows.push_back({add, &record});
  }
  return rows;
}

/// Where the n-th of them leaves its sums, or nowhere. Each has words of its own, which the next one's router
/// clears: nothing else of the step lies between.
RouterSums sums_of(const Program& program, const std::vector<Routed>& rows, size_t n,
                   const Context& context) {
  const NormRoute& route = rows[n].route();
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(route.router.id), weight = memory.matrix(rows[n].add->weight.id);
  const int words = RouterSums::kCopies * router.rows;
  const Sizes sizes = context.sizes();  // of one row
  if (context.step_rows != 1 || rows.size() < 2 || router.rows % 4 != 0 ||
      static_cast<int64_t>(rows.size()) * words > kSumsWords)
    return {};
  if (!serves_norm_moe_gate_up(program, *rows[n].record, sizes) ||
      !adds_and_routes_one_row(weight, memory.rows(rows[n].add->in.id).data))
    return {};
  return {reinterpret_cast<unsigned long long*>(context.step.board) + kSumsBoard + n * words,
          reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
          memory.vector(route.norm.id), router.rows, router.columns};
}

void launch_norm_moe_gate_up(const Program& program, const Op& record, const Context& context) {
  const auto& [norm_route, experts] = std::get<NormMoeGateUp>(record.args);
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(norm_route.router.id);
  const Rows<int32_t> ids = memory.int_rows(norm_route.route.ids.id);
  OneRowRoute route{reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
                    memory.vector(norm_route.norm.id),
                    memory.vector(norm_route.route.bias.id),
                    norm_route.epsilon,
                    route_rule(norm_route.route, router.rows, ids.columns),
                    ids.data,
                    memory.rows(norm_route.route.weights.id).data,
                    nullptr,
                    nullptr};
  const std::vector<Routed> rows = routed_rows(program);
  for (size_t n = 0; n < rows.size(); ++n) {
    if (rows[n].record->args.index() != record.args.index() || rows[n].route().in.id != norm_route.in.id)
      continue;
    const auto* before =
        context.previous == nullptr ? nullptr : std::get_if<MatmulAdd>(&context.previous->args);
    if (before == nullptr || before->out.id != norm_route.in.id) break;
    route.sums = sums_of(program, rows, n, context).words;
    route.clear = sums_of(program, rows, (n + rows.size() - 1) % rows.size(), context).words;
  }
  OneRowGated gated;
  gated.routed = {memory.matrix(experts.gate.id), memory.matrix(experts.up.id), memory.rows(experts.out.id),
                  nullptr, ids.columns};
  if (experts.shared_gate) {
    gated.shared = {memory.matrix(experts.shared_gate.id), memory.matrix(experts.shared_up.id),
                    memory.rows(experts.shared_out.id), nullptr, 1};
  }
  gated.in = memory.rows(norm_route.in.id).data;
  if (!route_one_row(context, gated, route))
    throw std::logic_error("norm_moe_gate_up: not what serves() promised");
}

bool serves_norm_moe_gate_up(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& [norm_route, experts] = std::get<NormMoeGateUp>(record.args);
  const auto pairs = [&](TensorId gate, TensorId up) {
    const auto blocks = [&](TensorId id) { return program.elements(program.storage(id), {}) / 32; };
    return program[gate].type == program[up].type && program[gate].shape[1] == program[up].shape[1] &&
           std::max(blocks(gate), blocks(up)) < double{1u << 31};
  };
  const Tensor &in = program[norm_route.in.id], &router = program[norm_route.router.id];
  if (sizes.rows > 1 || router.type != quant::Type::F32) return false;
  if (in.offset % 4 != 0 || router.offset % 4 != 0) return false;
  if (!pairs(experts.gate.id, experts.up.id)) return false;
  quant::Type shared = program[experts.gate.id].type;
  if (experts.shared_gate) {
    if (!pairs(experts.shared_gate.id, experts.shared_up.id)) return false;
    shared = program[experts.shared_gate.id].type;
  }
  const int64_t used = program[norm_route.route.ids.id].columns();
  return routes_one_row(program[experts.gate.id].type, shared, in.columns(),
                        route_rule(norm_route.route, router.shape[1], used));
}

}  // namespace

RouterSums sums_for_router(const Program& program, const MatmulAdd& add, const Context& context) {
  const std::vector<Routed> rows = routed_rows(program);
  for (size_t n = 0; n < rows.size(); ++n)
    if (rows[n].add->out.id == add.out.id) return sums_of(program, rows, n, context);
  return {};
}

Board selected_experts(const Program& program, TensorId ids, const Context& context) {
  const auto* before =
      context.previous == nullptr ? nullptr : std::get_if<NormMoeGateUp>(&context.previous->args);
  if (before == nullptr || context.step_rows != 1 || context.launch == 0) return {};
  const auto& [norm_route, experts] = *before;
  const TensorId left = norm_route.route.ids.id;
  if (program.storage(left) != program.storage(ids) || program[left].offset != program[ids].offset) return {};
  Board board = context.board();
  --board.launch;
  return board;
}

const Kernel kNormMoeGateUp{"norm, router, selection and gated gemv of experts", serves_norm_moe_gate_up,
                            launch_norm_moe_gate_up};

}  // namespace sluice::backend::cuda
