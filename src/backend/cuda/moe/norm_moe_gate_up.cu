// norm_moe_gate_up of one row: norm, router, selection and the experts' gated products in one launch
// (gemv_routed.cu); and of two (gemv_rows.cuh), whose router is the launch before or one of its own.
#include <algorithm>
#include <stdexcept>

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_mixture.cuh"
#include "backend/cuda/moe/gemv_routed.cuh"
#include "backend/cuda/moe/gemv_rows.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Columns of all rows that a thread block has in codes, in gates and ups.
constexpr int64_t kMostHeldColumns = 32768;

void launch_norm_moe_gate_up(const Program& program, const Op& record, const Context& context) {
  const auto& [norm_route, experts, shared_router] = std::get<NormMoeGateUp>(record.args);
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(norm_route.router.id);
  const Rows<int32_t> ids = memory.int_rows(norm_route.route.ids.id);
  GemvRoute route{floats_of(memory, norm_route.router.id),
                  memory.vector(norm_route.norm.id),
                  memory.vector(norm_route.route.bias.id),
                  memory.vector(norm_route.router_bias.id),
                  memory.vector(shared_router.id),
                  norm_route.epsilon,
                  route_rule(norm_route.route, router.rows, ids.columns),
                  ids.data,
                  memory.rows(norm_route.route.weights.id).data,
                  nullptr,
                  nullptr,
                  nullptr};
  const bool sums =
      context.produces != nullptr && mixture::sums_experts(program, norm_route.route.ids.id, context.sizes());
  if (context.produces != nullptr && !sums) route.selected = context.mailbox(*context.produces).slots;
  if (context.consumes != nullptr) {
    route.sums = reinterpret_cast<const unsigned long long*>(context.consumes->at);
    route.clear = reinterpret_cast<unsigned long long*>(context.consumes->clear);
  }
  GemvGated gated;
  gated.routed = {memory.matrix(experts.gate.id),
                  memory.matrix(experts.up.id),
                  memory.rows(experts.out.id),
                  nullptr,
                  ids.columns,
                  floats_of(memory, experts.gate_bias.id),
                  floats_of(memory, experts.up_bias.id),
                  memory.vector(experts.gate_scale.id),
                  memory.vector(experts.up_scale.id),
                  experts.form};
  if (experts.shared_gate) {
    gated.shared = {memory.matrix(experts.shared_gate.id), memory.matrix(experts.shared_up.id),
                    memory.rows(experts.shared_out.id), nullptr, 1};
  }
  gated.in = memory.rows(norm_route.in.id).data;
  if (sums && route.sums != nullptr) {
    return mixture::launch_mixture_of(program, std::get<MoeDownAdd>(context.produces->other->args), context,
                                      gated, route);
  }
  if (!route_gemv(context, gated, route))
    throw std::logic_error("norm_moe_gate_up: not what serves() promised");
  if (!sums) return;
  Context behind = context;
  behind.consumes = nullptr, behind.produces = context.produces->behind;
  kMoeDownAdd.launch(program, *context.produces->other, behind);
}

/// Whether gates and ups can be read side by side, and rows by whole words.
bool serves_any(const Program& program, const NormMoeGateUp& op) {
  const auto& [norm_route, experts, shared_router] = op;
  const auto pairs = [&](TensorId gate, TensorId up) {
    const auto blocks = [&](TensorId id) { return program.elements(program.storage(id), {}) / 32; };
    return program[gate].type == program[up].type && program[gate].shape[1] == program[up].shape[1] &&
           std::max(blocks(gate), blocks(up)) < double{1u << 31};
  };
  const Tensor &in = program[norm_route.in.id], &router = program[norm_route.router.id];
  return router.type == quant::Type::F32 && in.offset % 4 == 0 && router.offset % 4 == 0 &&
         pairs(experts.gate.id, experts.up.id) &&
         (!experts.shared_gate || pairs(experts.shared_gate.id, experts.shared_up.id));
}
quant::Type shared_type(const Program& program, const MoeGateUp& op) {
  return program[op.shared_gate ? op.shared_gate.id : op.gate.id].type;
}
RouteRule rule_of(const Program& program, const NormRoute& route) {
  return route_rule(route.route, program[route.router.id].shape[1], program[route.route.ids.id].columns());
}

/// Biases, scales and an activation that the kernel of one row knows, if there are any.
bool takes_form(const Program& program, const NormMoeGateUp& op) {
  for (const Read bias : {op.experts.gate_bias, op.experts.up_bias})
    if (bias && program[bias.id].type != quant::Type::F32) return false;
  if (op.experts.gate_scale || op.experts.up_scale)
    return takes_scales(program[op.experts.gate.id].type) && !op.experts.gate_bias && !op.route.router_bias &&
           op.experts.form.is_plain();
  return (op.experts.is_plain() && !op.route.router_bias) ||
         (takes_biases(program[op.experts.gate.id].type) && !op.experts.shared_gate && !op.route.route.bias);
}
bool serves_norm_moe_gate_up(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const RouteRule rule = rule_of(program, op.route);
  return sizes.rows == 1 && serves_any(program, op) && takes_form(program, op) &&
         in_block(rule, static_cast<bool>(op.route.route.bias)) &&
         routes_gemv(program[op.experts.gate.id].type, shared_type(program, op.experts),
                     program[op.route.in.id].columns(), rule);
}

bool serves_rows(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const Tensor &in = program[op.route.in.id], &gate = program[op.experts.gate.id];
  const RouteRule rule = rule_of(program, op.route);
  // Measured on 9.0 alone.
  if (sizes.rows != gemv_rows::kRows || most_shared(sizes.architecture) <= kMostShared) return false;
  if (!serves_any(program, op)) return false;
  return gemv_rows::is_compiled(gate.type) && in_block(rule, static_cast<bool>(op.route.route.bias)) &&
         rule.experts % 4 == 0 && sizes.rows * rule.used <= kMostSlots && in.columns() % 32 == 0 &&
         in.stride[0] % 4 == 0 && sizes.rows * in.columns() <= kMostHeldColumns &&
         with_types(gate.type, shared_type(program, op.experts), [&]<quant::Type, quant::Type>() {});
}

void launch_rows(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const auto& [norm_route, experts, shared_router] = op;
  const Memory& memory = context.memory;
  const int64_t rows = context.step_rows;
  const RouteRule rule = rule_of(program, norm_route);
  const GemvGated::Experts routed{memory.matrix(experts.gate.id), memory.matrix(experts.up.id),
                                  memory.rows(experts.out.id), nullptr, static_cast<int>(rows) * rule.used};
  GemvGated::Experts shared{};
  if (experts.shared_gate) {
    shared = {memory.matrix(experts.shared_gate.id), memory.matrix(experts.shared_up.id),
              memory.rows(experts.shared_out.id), nullptr, 1};
  }
  const RowShape shape = row_shape(routed.gate);
  gemv_rows::Args args{};
  if (!take(routed, shape, args.routed) || !take(shared, shape, args.shared))
    throw std::logic_error("norm_moe_gate_up: not what serves() promised");
  args.shared_stride = shared.out.row_stride, args.routed_stride = routed.out.row_stride;
  args.in = memory.rows(norm_route.in.id), args.rows = &context.step.header->rows;
  args.norm = memory.vector(norm_route.norm.id), args.bias = memory.vector(norm_route.route.bias.id);
  args.epsilon = norm_route.epsilon, args.rule = block_rule(rule, args.bias != nullptr);
  args.ids = memory.int_rows(norm_route.route.ids.id);
  args.weights = memory.rows(norm_route.route.weights.id);
  args.mailbox = context.mailbox();
  const bool sums =
      context.produces != nullptr && mixture::sums_experts(program, norm_route.route.ids.id, context.sizes());
  if (context.produces != nullptr && !sums) args.selected = context.mailbox(*context.produces).slots;
  if (context.consumes != nullptr) {
    args.sums = reinterpret_cast<const unsigned long long*>(context.consumes->at);
    args.clear = reinterpret_cast<unsigned long long*>(context.consumes->clear);
  } else {
    leave_logits(op, context);
    args.shares = args.mailbox.slots + shared_logits_at(rows, rule.experts);
  }
  args.has_shares = static_cast<bool>(shared_router);
  args.columns = routed.gate.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (sums && args.sums != nullptr) {
    return mixture::launch_mixture_of(program, std::get<MoeDownAdd>(context.produces->other->args), context,
                                      args, routed.gate.type, shared_type(program, experts));
  }
  // A task of the shared matrix is one of all rows, and often of a finer type.
  const int shared_tasks = args.shared.slots * args.shared.tasks * static_cast<int>(rows) * 5 / 4;
  const int tasks = shared_tasks + args.routed.slots * args.routed.tasks;
  const LaunchShape launched =
      gemv_launch(context, tasks,
                  Activations::row_bytes(gemv_rows::kRows * args.columns, true, false) + 4 * args.columns);
  // Warps by work; those that select or clear are not the shared matrix's.
  const auto blocks = static_cast<int>(launched.grid.x);
  args.shared_warps = static_cast<int>((int64_t{blocks} * kGemvWarps * shared_tasks + tasks - 1) / tasks);
  args.shared_warps = std::min(args.shared_warps, blocks * (kGemvWarps - args.rule.warps - 1));
  with_type(routed.gate.type, [&]<quant::Type Routed>() {
    if constexpr (gemv_rows::is_compiled(Routed))
      gemv_rows::launch_rows<Routed>(context, shared_type(program, experts), args, launched);
  });
  if (!sums) return;
  Context behind = context;
  behind.consumes = nullptr, behind.produces = context.produces->behind;
  kMoeDownAddRows.launch(program, *context.produces->other, behind);
}

std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes& sizes) {
  return mixture::given_to_down(program, std::get<NormMoeGateUp>(record.args).route.route.ids.id, sizes);
}
std::optional<FormSpec> consumes(const Program& program, const Op& record, const Sizes&) {
  const auto& [route, experts, shared_router] = std::get<NormMoeGateUp>(record.args);
  const int64_t logits = program[route.router.id].shape[1] + (shared_router ? 1 : 0);
  return FormSpec{Form::RouterSums, route.in.id, RouterSums::all_slots(logits) * int64_t{sizeof(uint64_t)}};
}
MailboxNeeds mailbox(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const bool sums = mixture::sums_experts(program, op.route.route.ids.id, sizes);
  return {.flagged =
              std::max<int64_t>(routed::kMostParts, sums ? mixture::slots_of_mixture(program, op, 1) : 0)};
}
MailboxNeeds mailbox_of_rows(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const bool sums = mixture::sums_experts(program, op.route.route.ids.id, sizes);
  return {.flagged = std::max(slots_of_logits(sizes.rows, program[op.route.router.id].shape[1]),
                              sums ? mixture::slots_of_mixture(program, op, sizes.rows) : 0)};
}

}  // namespace

RouterSums router_sums(const Context& context, const FormBuffer& form) {
  const auto& [route, experts, shared_router] = std::get<NormMoeGateUp>(form.other->args);
  const Matrix router = context.memory.matrix(route.router.id);
  return {reinterpret_cast<unsigned long long*>(form.at),
          reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
          context.memory.vector(route.norm.id),
          context.memory.vector(shared_router.id),
          router.rows + (shared_router ? 1 : 0),
          router.columns};
}

const Kernel kNormMoeGateUp{"norm, router, selection and gated gemv of experts",
                            serves_norm_moe_gate_up,
                            launch_norm_moe_gate_up,
                            nullptr,
                            produces,
                            consumes,
                            mailbox};

const Kernel kNormMoeGateUpRows{"selection and gated gemv of experts, of two rows",
                                serves_rows,
                                launch_rows,
                                nullptr,
                                produces,
                                consumes,
                                mailbox_of_rows};

}  // namespace sluice::backend::cuda
