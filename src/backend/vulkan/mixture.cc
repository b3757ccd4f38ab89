// The router's product, the choice of experts, and their first half.
#include "backend/vulkan/emit.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

/// Experts that every workgroup chooses from again, each of them compared with each.
constexpr int64_t kChosenFrom = 256;

/// The shared expert needs no choice, and runs beside the router's product.
void emit_few_rows(Emit& emit, const NormMoeGateUp& op) {
  const NormRoute& route = op.route;
  const MoeGateUp& experts = op.experts;
  const Operand in = emit.operand(route.in.id), ids = emit.operand(route.route.ids.id),
                weights = emit.operand(route.route.weights.id);
  const Operand logits = emit.scratch(1, emit[route.router.id].shape[1]);
  ProductOf first{
      .in = in, .weight = route.router.id, .out = logits, .norm = route.norm.id, .epsilon = route.epsilon};
  const SideProduct router{route.router.id, logits};
  if (experts.shared_gate) {
    first.weight = experts.shared_up.id, first.gate = experts.shared_gate.id;
    first.out = emit.operand(experts.shared_out.id), first.side = &router;
  }
  emit_product(emit, first);
  emit.wait();
  const Choice choice{logits, weights, &route.route};
  const bool chosen = route.route.groups <= 1 && logits.columns <= kChosenFrom;
  if (!chosen) {
    emit_route(emit, route.route, logits, ids, weights);
    emit.wait();
  }
  emit_product(emit, {.in = in,
                      .weight = experts.up.id,
                      .out = emit.operand(experts.out.id),
                      .gate = experts.gate.id,
                      .norm = route.norm.id,
                      .ids = &ids,
                      .epsilon = route.epsilon,
                      .form = experts.form,
                      .choice = chosen ? &choice : nullptr});
}

/// Many rows are normed once.
void emit_many_rows(Emit& emit, const NormMoeGateUp& op) {
  const NormRoute& route = op.route;
  const MoeGateUp& experts = op.experts;
  const Operand in = emit.operand(route.in.id), ids = emit.operand(route.route.ids.id),
                weights = emit.operand(route.route.weights.id);
  const Operand logits = emit.scratch(1, emit[route.router.id].shape[1]),
                normed = emit.scratch(1, in.columns);
  emit_product(
      emit,
      {.in = in, .weight = route.router.id, .out = logits, .norm = route.norm.id, .epsilon = route.epsilon});
  emit_norm(emit, in, route.norm.id, route.epsilon, normed);
  emit.wait();
  emit_route(emit, route.route, logits, ids, weights);
  if (experts.shared_gate)
    emit_product(emit, {.in = normed,
                        .weight = experts.shared_up.id,
                        .out = emit.operand(experts.shared_out.id),
                        .gate = experts.shared_gate.id});
  emit.wait();
  emit_product(emit, {.in = normed,
                      .weight = experts.up.id,
                      .out = emit.operand(experts.out.id),
                      .gate = experts.gate.id,
                      .ids = &ids,
                      .form = experts.form});
}

}  // namespace

void emit(Emit& emit, const NormMoeGateUp& op) {
  // Where rows must not feel each other, a row is normed in one way however many there are.
  if (is_tiled(emit, emit.sizes.rows))
    emit_many_rows(emit, op);
  else
    emit_few_rows(emit, op);
}

}  // namespace sluice::backend::vulkan
