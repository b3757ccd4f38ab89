// The router's product, the choice of experts, and their first half.
#include "backend/vulkan/emit.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

/// Experts that every workgroup chooses from again, each of them compared with each.
constexpr int64_t kChosenFrom = 256;

/// Whether rows become codes once for all of its experts.
bool experts_take_codes(const Emit& emit, const NormMoeGateUp& op) {
  const MoeGateUp& experts = op.experts;
  return are_coded_once(emit, emit.sizes.rows) && is_of_runs(emit[experts.up.id]) &&
         emit[experts.up.id].shape[0] <= kMostGrouped &&
         (!experts.shared_up || is_of_runs(emit[experts.shared_up.id]));
}

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

/// Several rows are normed once, as codes or as floats, and each chooses once.
void emit_several_rows(Emit& emit, const NormMoeGateUp& op) {
  const NormRoute& route = op.route;
  const MoeGateUp& experts = op.experts;
  const Operand in = emit.operand(route.in.id), ids = emit.operand(route.route.ids.id),
                weights = emit.operand(route.route.weights.id), out = emit.operand(experts.out.id);
  const Operand logits = emit.scratch(1, emit[route.router.id].shape[1]);
  ProductOf shared{.weight = experts.shared_up.id, .gate = experts.shared_gate.id};
  ProductOf chosen{
      .weight = experts.up.id, .out = out, .gate = experts.gate.id, .ids = &ids, .form = experts.form};
  if (experts.shared_gate) shared.out = emit.operand(experts.shared_out.id);
  const ProductOf router{
      .in = in, .weight = route.router.id, .out = logits, .norm = route.norm.id, .epsilon = route.epsilon};
  // Tiles of a router are few and take long: the shared expert's run beside them.
  const bool tiled = is_tiled(emit, emit.sizes.rows);
  if (!tiled) emit_product(emit, router);
  Codes codes;
  if (experts_take_codes(emit, op)) {
    codes = emit_codes(emit, in, in.columns, 1, route.norm.id, route.epsilon);
    shared.codes = chosen.codes = &codes, shared.in = chosen.in = in;
  } else {
    shared.in = chosen.in = emit.scratch(1, in.columns);
    emit_norm(emit, in, route.norm.id, route.epsilon, chosen.in);
  }
  emit.wait();
  if (tiled) {
    emit_product(emit, router);
    if (experts.shared_gate) emit_product(emit, shared);
    emit.wait();
  }
  emit_route(emit, route.route, logits, ids, weights);
  if (!tiled && experts.shared_gate) emit_product(emit, shared);
  emit.wait();
  emit_product(emit, chosen);
}

}  // namespace

void emit(Emit& emit, const NormMoeGateUp& op) {
  // Where rows must not feel each other, a row is normed in one way however many there are.
  if (are_grouped(emit, emit.sizes.rows) || experts_take_codes(emit, op))
    emit_several_rows(emit, op);
  else
    emit_few_rows(emit, op);
}

}  // namespace sluice::backend::vulkan
