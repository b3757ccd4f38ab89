// norm_moe_gate_up of one row: norm, router, selection and the experts' gated products in one launch
// (gemv_gated.cu). Other steps expand it.
#include <algorithm>
#include <stdexcept>

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_routed.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

void launch_norm_moe_gate_up(const Program& program, const Op& record, const Context& context) {
  const auto& [norm_route, experts] = std::get<NormMoeGateUp>(record.args);
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(norm_route.router.id);
  const Rows<int32_t> ids = memory.int_rows(norm_route.route.ids.id);
  GemvRoute route{reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
                  memory.vector(norm_route.norm.id),
                  memory.vector(norm_route.route.bias.id),
                  norm_route.epsilon,
                  route_rule(norm_route.route, router.rows, ids.columns),
                  ids.data,
                  memory.rows(norm_route.route.weights.id).data,
                  nullptr,
                  nullptr,
                  nullptr};
  if (context.produces != nullptr) route.selected = context.mailbox(*context.produces).slots;
  if (context.consumes != nullptr) {
    route.sums = reinterpret_cast<const unsigned long long*>(context.consumes->at);
    route.clear = reinterpret_cast<unsigned long long*>(context.consumes->clear);
  }
  GemvGated gated;
  gated.routed = {memory.matrix(experts.gate.id), memory.matrix(experts.up.id), memory.rows(experts.out.id),
                  nullptr, ids.columns};
  if (experts.shared_gate) {
    gated.shared = {memory.matrix(experts.shared_gate.id), memory.matrix(experts.shared_up.id),
                    memory.rows(experts.shared_out.id), nullptr, 1};
  }
  gated.in = memory.rows(norm_route.in.id).data;
  if (!route_gemv(context, gated, route))
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
  return routes_gemv(program[experts.gate.id].type, shared, in.columns(),
                     route_rule(norm_route.route, router.shape[1], used));
}

std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes& sizes) {
  return given_selection(program, std::get<NormMoeGateUp>(record.args).route.route.ids.id, sizes);
}
std::optional<FormSpec> consumes(const Program& program, const Op& record, const Sizes&) {
  const NormRoute& route = std::get<NormMoeGateUp>(record.args).route;
  const int64_t experts = program[route.router.id].shape[1];
  if (experts % 4 != 0) return std::nullopt;
  return FormSpec{Form::RouterSums, route.in.id, RouterSums::kCopies * experts * int64_t{sizeof(uint64_t)}};
}
MailboxNeeds mailbox(const Program&, const Op&, const Sizes&) { return {.flagged = routed::kMostParts}; }

}  // namespace

RouterSums router_sums(const Context& context, const FormBuffer& form) {
  const NormRoute& route = std::get<NormMoeGateUp>(form.other->args).route;
  const Matrix router = context.memory.matrix(route.router.id);
  return {reinterpret_cast<unsigned long long*>(form.at),
          reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
          context.memory.vector(route.norm.id), router.rows, router.columns};
}

const Kernel kNormMoeGateUp{"norm, router, selection and gated gemv of experts",
                            serves_norm_moe_gate_up,
                            launch_norm_moe_gate_up,
                            nullptr,
                            produces,
                            consumes,
                            mailbox};

}  // namespace sluice::backend::cuda
