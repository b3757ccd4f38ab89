// norm_moe_gate_up of one row: what its kernel (gemv_routed_kernel.cuh) gets.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/gemv_routed.cuh"

namespace sluice::backend::cuda {

using namespace routed;

namespace {

int stretches_of(int64_t columns) { return static_cast<int>((columns + kStretch - 1) / kStretch); }

}  // namespace

bool route_gemv(const Context& context, const GemvGated& gated, const GemvRoute& route) {
  const Matrix& first = gated.routed.gate;
  const Matrix& second = gated.shared.gate.codes != nullptr ? gated.shared.gate : first;
  if (!is_aligned(gated.in) || first.columns % 32 != 0) return false;
  const RowShape shape = row_shape(first);
  Args args{};
  args.in = gated.in, args.columns = first.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (!take(gated.routed, shape, args.routed) || !take(gated.shared, shape, args.shared)) return false;
  args.router = {route.router,
                 route.norm,
                 route.bias,
                 route.logit_bias,
                 route.shared_router,
                 route.epsilon,
                 block_rule(route.rule, route.bias != nullptr),
                 context.mailbox(),
                 route.sums != nullptr ? 1 : stretches_of(args.columns),
                 route.ids,
                 route.weights,
                 route.selected,
                 route.sums,
                 route.clear};
  const int tasks = args.shared.slots * args.shared.tasks + args.routed.slots * args.routed.tasks;
  const LaunchShape launched =
      gemv_launch(context, tasks, Activations::row_bytes(args.columns, true, false) + 4 * args.columns);
  bool there = false;
  with_type(first.type, [&]<quant::Type Routed>() {
    there = launch_routed<Routed>(context, second.type, args, launched);
  });
  return there;
}

bool routes_gemv(quant::Type routed, quant::Type shared, int64_t columns, const RouteRule& rule) {
  return columns % 32 == 0 && in_lanes(rule) && (rule.experts + 1) * stretches_of(columns) <= kMostParts &&
         with_types(routed, shared, [&]<quant::Type, quant::Type>() {});
}

}  // namespace sluice::backend::cuda
