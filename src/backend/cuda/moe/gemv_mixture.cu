// A mixture of one row or two in one launch: which ops it is for, and what its kernels get
// (gemv_mixture_kernel.cuh, gemv_mixture_rows_kernel.cuh).
#include "backend/cuda/moe/gemv_mixture.cuh"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/residual.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "program/op.h"

namespace sluice::backend::cuda::mixture {

using namespace program;

namespace {

/// Bytes of shared memory beside what is asked for at launch.
constexpr int64_t own_bytes(int64_t rows) { return rows == 1 ? 4096 : 9 * 1024; }

/// How a kernel lies in shared memory.
struct Plan {
  int64_t rows;
  int codes_at, staged_at;
  gemv_down::Stage stage, shared_stage;

  int64_t bytes() const { return staged_at + int64_t{kOutputs} * (rows * stage.bytes + shared_stage.bytes); }
};
/// columns: of a row that is routed.
Plan plan_of(const Program& program, int64_t rows, int64_t columns, const MoeDownAdd& op) {
  const Tensor& down = program[op.down.id];
  const int64_t used = program[op.ids.id].columns();
  const int64_t shared = op.shared_in ? program[op.shared_down.id].columns() : 0;
  const auto coded = [&](int64_t of_row) {
    return Activations::row_bytes(static_cast<int>(rows * of_row), true, false);
  };
  Plan plan{.rows = rows};
  plan.codes_at = coded(columns) + static_cast<int>(4 * columns);
  plan.staged_at = plan.codes_at + coded(used * down.columns() + shared);
  plan.stage = gemv_down::Stage::of(plane_bytes(down.type, down.columns()), static_cast<int>(used));
  if (shared > 0)
    plan.shared_stage = gemv_down::Stage::of(plane_bytes(program[op.shared_down.id].type, shared), 1);
  return plan;
}

PlaneCopy copy_of(const gemv_down::StagePlane& plane) {
  const int piece = plane.bytes % 16 == 0 ? 16 : plane.bytes % 4 == 0 ? 4 : 2;
  const int pieces = plane.bytes / piece;
  const uint32_t inverse =
      pieces > 1 ? static_cast<uint32_t>(((uint64_t{1} << 32) + pieces - 1) / pieces) : 0;
  return {plane.bytes, plane.at, piece, pieces, inverse};
}
StageCopy copy_of(const gemv_down::Stage& stage) {
  return {copy_of(stage.codes), copy_of(stage.high), copy_of(stage.scale), copy_of(stage.super)};
}
/// Whether a warp can copy `count` rows of the planes: whole words, or one half a lane, for which there is no
/// asynchronous copy.
bool takes(const PlaneBytes& row, int64_t count) {
  return row.codes % 4 == 0 && row.high % 4 == 0 && row.scale % 4 == 0 &&
         (row.super % 4 == 0 || count * row.super / 2 <= 32);
}

template <typename Args>
const Args* find(const Program& program, auto&& is) {
  for (const Op& op : program.ops()) {
    const auto* const args = std::get_if<Args>(&op.args);
    if (args != nullptr && is(*args)) return args;
  }
  return nullptr;
}
/// The two ops of a mixture; null where the program has not got them.
std::pair<const NormMoeGateUp*, const MoeDownAdd*> ops_of(const Program& program, TensorId ids) {
  return {find<NormMoeGateUp>(program, [&](const auto& op) { return op.route.route.ids.id == ids; }),
          find<MoeDownAdd>(program, [&](const auto& op) { return op.ids.id == ids; })};
}

template <typename Start>
bool with_routed(Type routed, Start&& start) {
  if (routed == Type::Q4_0) return start.template operator()<Type::Q4_0>();
  if (routed == Type::Q4_K) return start.template operator()<Type::Q4_K>();
  return false;
}

}  // namespace

bool sums_experts(const Program& program, TensorId ids, const Sizes& sizes) {
  // Measured on 9.0 alone.
  if (sizes.rows > gemv_rows::kRows || sizes.architecture < 90 ||
      most_shared(sizes.architecture) <= kMostShared)
    return false;
  const Kernel &gates = sizes.rows == 1 ? kNormMoeGateUp : kNormMoeGateUpRows,
               &downs = sizes.rows == 1 ? kMoeDownAdd : kMoeDownAddRows;
  const auto [gated, summed] = ops_of(program, ids);
  if (gated == nullptr || summed == nullptr || !gates.serves(program, Op{*gated}, sizes) ||
      !downs.serves(program, Op{*summed}, sizes))
    return false;
  const MoeGateUp& experts = gated->experts;
  if (summed->in.id != experts.out.id || summed->shared_in.id != experts.shared_out.id ||
      summed->weights.id != gated->route.route.weights.id)
    return false;
  if (!experts.is_plain() || gated->route.router_bias || summed->down_bias || summed->down_scale)
    return false;
  const Tensor &gate = program[experts.gate.id], &down = program[summed->down.id],
               &in = program[summed->in.id];
  const Tensor& shared_down = program[summed->shared_in ? summed->shared_down.id : summed->down.id];
  const Type shared = program[summed->shared_in ? experts.shared_gate.id : experts.gate.id].type;
  const auto blocks_fit = [&](TensorId id) {
    return program.elements(program.storage(id), {}) / 32 < double{1u << 31};
  };
  if (in.stride[1] != in.columns() || down.columns() % 32 != 0 || shared_down.columns() % 32 != 0 ||
      !blocks_fit(summed->down.id) || (summed->shared_in && !blocks_fit(summed->shared_down.id)))
    return false;
  // Every block has an output's warps, and gated products for half of its warps or more (of fewer it was not
  // measured): it has read the row before the sum is written.
  const int64_t at_once = 32 / lanes_for(static_cast<int>(gate.columns()));
  const int64_t outputs = int64_t{kOutputs} * sizes.sm_count;
  if (down.shape[1] > outputs || in.heads() * (in.columns() / at_once) < outputs) return false;
  const PlaneBytes row = plane_bytes(down.type, down.columns()),
                   shared_row = plane_bytes(shared_down.type, shared_down.columns());
  return takes(row, in.heads()) &&
         (!summed->shared_in || (shared_row.super % 4 == 0 && takes(shared_row, 1))) &&
         plan_of(program, sizes.rows, program[gated->route.in.id].columns(), *summed).bytes() <=
             kAllShared - own_bytes(sizes.rows) &&
         with_routed(gate.type, [&]<Type Routed>() {
           return with_mixture_types<Routed>(shared, down.type, shared_down.type, [&]<Type, Type, Type>() {});
         });
}

std::optional<FormSpec> given_to_down(const Program& program, TensorId ids, const Sizes& sizes) {
  if (!sums_experts(program, ids, sizes)) return given_selection(program, ids, sizes);
  return FormSpec{Form::ExpertsSum, ids, 0};
}

int64_t slots_of_mixture(const Program& program, const NormMoeGateUp& op, int64_t rows) {
  const Tensor& out = program[op.experts.out.id];
  return rows * (out.heads() * out.columns() +
                 (op.experts.shared_gate ? program[op.experts.shared_out.id].columns() : 0));
}

namespace {

/// A launch of one thread block an SM: what it gets of moe_down_add, and its types.
struct DownLaunch {
  Down down;
  Type type, shared_type;
  LaunchShape shape;
};
DownLaunch down_launch(const MoeDownAdd& op, const Context& context, const Plan& plan) {
  const Memory& memory = context.memory;
  const Matrix down = memory.matrix(op.down.id);
  DownLaunch launched{{},
                      down.type,
                      down.type,
                      {dim3(static_cast<unsigned>(context.sm_count)), dim3(kThreads), plan.bytes()}};
  Down& to = launched.down;
  to.planes = planes_from(down), to.first_row = static_cast<int>(down.first_row),
  to.matrix_rows = static_cast<int>(down.matrix_rows);
  to.stage = plan.stage, to.shared_stage = plan.shared_stage;
  to.copy = copy_of(plan.stage), to.shared_copy = copy_of(plan.shared_stage);
  to.codes_at = plan.codes_at, to.staged_at = plan.staged_at;
  to.blocks = down.columns / 32, to.rows = down.rows;
  if (op.shared_in) {
    const Matrix shared = memory.matrix(op.shared_down.id);
    to.shared_planes = planes_from(shared), to.shared_row = static_cast<int>(shared.first_row);
    to.shared_blocks = shared.columns / 32, launched.shared_type = shared.type;
  }
  to.residual = residual_rows(memory, op.residual.id, op.out.id), to.out = memory.rows(op.out.id);
  return launched;
}

/// The shared matrix's warps of the launch: by work, but not those that select or clear.
int shared_warps(int blocks, int selecting, int64_t shared_tasks, int64_t routed_tasks) {
  const int64_t tasks = shared_tasks + routed_tasks;
  const auto by_work = static_cast<int>((blocks * kWarps * shared_tasks + tasks - 1) / tasks);
  return std::min(by_work, blocks * (kWarps - selecting - 1));
}

}  // namespace

void launch_mixture_of(const Program& program, const MoeDownAdd& op, const Context& context,
                       const GemvGated& gated, const GemvRoute& route) {
  const RowShape shape = row_shape(gated.routed.gate);
  Args args{};
  args.in = gated.in, args.columns = gated.routed.gate.columns;
  args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (!take(gated.routed, shape, args.routed) || !take(gated.shared, shape, args.shared))
    throw std::logic_error("norm_moe_gate_up: not what sums_experts() promised");
  args.router = {route.router,
                 route.norm,
                 route.bias,
                 nullptr,
                 route.shared_router,
                 route.epsilon,
                 block_rule(route.rule, route.bias != nullptr),
                 context.mailbox(),
                 1,
                 route.ids,
                 route.weights,
                 nullptr,
                 route.sums,
                 route.clear};
  const DownLaunch to = down_launch(op, context, plan_of(program, 1, args.columns, op));
  args.down = to.down;
  args.shared_warps =
      shared_warps(context.sm_count, args.router.rule.warps, int64_t{args.shared.slots} * args.shared.tasks,
                   int64_t{args.routed.slots} * args.routed.tasks);
  const Type of_shared = args.shared.slots > 0 ? gated.shared.gate.type : gated.routed.gate.type;
  with_routed(gated.routed.gate.type, [&]<Type Routed>() {
    return launch_mixture<Routed>(context, of_shared, to.type, to.shared_type, args, to.shape);
  });
}

void launch_mixture_of(const Program& program, const MoeDownAdd& op, const Context& context,
                       const gemv_rows::Args& gated, Type routed, Type shared) {
  const DownLaunch to = down_launch(op, context, plan_of(program, gemv_rows::kRows, gated.columns, op));
  const int routed_blocks = gated.rule.used * to.down.blocks;
  RowsArgs args{gated, to.down, rows_for(context.produces->behind, program, context), routed_blocks,
                routed_blocks + to.down.shared_blocks};
  args.gated.shared_warps = shared_warps(context.sm_count, gated.rule.warps,
                                         int64_t{gemv_rows::kRows} * gated.shared.slots * gated.shared.tasks,
                                         int64_t{gated.routed.slots} * gated.routed.tasks);
  with_routed(routed, [&]<Type Routed>() {
    return launch_mixture<Routed>(context, shared, to.type, to.shared_type, args, to.shape);
  });
}

}  // namespace sluice::backend::cuda::mixture
