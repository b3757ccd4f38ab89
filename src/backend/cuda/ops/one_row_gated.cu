// Gated products of one row (gate_up, norm_gate_up, moe_gate_up): the shared or dense matrix first, whose
// first blocks are asked for before the kernel waits; then the experts that were selected, whose ids are read
// here: nothing is gathered.
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/one_row_gated.cuh"

namespace sluice::backend::cuda {
namespace {

struct Args {
  GatedPlanes shared, routed;
  const float *in, *norm;
  float epsilon;
  int columns, blocks, lanes;
  int shared_warps;  ///< of the launch
};

/// A warp takes rows of the shared matrix or of experts, never both.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kOneRowThreads, 2)
    row_gated(const Stamps stamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kOneRowWarps];
  const Link link(stamps);
  const int warp = warp_of_launch();
  const Activations x{0, args.columns, true, false};
  if (warp < args.shared_warps) {
    Walk<Shared> walk(args.shared, args.blocks, args.lanes, warp, args.shared_warps);
    walk.begin();
    if (args.norm == nullptr) {
      link.wait();
      quantize_row(x, args.in, nullptr, [] {});
      __syncthreads();
      walk.run(x);
      return;
    }
    float* const norm =
        reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
    fetch_norm(norm, args.norm, args.columns);
    link.wait();
    wait_for_copies();
    const float squares = quantize_row(x, args.in, norm, [] {});
    walk.run(x, meet_for_norm(squares, partial, args.columns, args.epsilon));
  } else {
    Walk<Routed> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                      warps_of_launch() - args.shared_warps);
    link.wait();
    walk.take_ids();
    quantize_row(x, args.in, nullptr, [&] { walk.begin(); });
    __syncthreads();
    walk.run(x);
  }
}

}  // namespace

bool gate_one_row(const Context& context, const OneRowGated& gated) {
  const Matrix& first = gated.routed.gate.codes != nullptr ? gated.routed.gate : gated.shared.gate;
  const Matrix& second = gated.shared.gate.codes != nullptr ? gated.shared.gate : first;
  if (!is_aligned(gated.in) || !is_aligned(gated.norm) || first.columns % 32 != 0) return false;
  const RowShape shape = row_shape(first);
  Args args{};
  args.in = gated.in, args.norm = gated.norm, args.epsilon = gated.epsilon;
  args.columns = first.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (gated.routed.slots > kMostSlots) return false;
  if (!take(gated.routed, shape, args.routed) || !take(gated.shared, shape, args.shared)) return false;
  const int tasks = args.shared.slots * args.shared.tasks + args.routed.slots * args.routed.tasks;
  const LaunchShape launched = one_row_launch(context, tasks,
                                              Activations::row_bytes(args.columns, true, false) +
                                                  (args.norm != nullptr ? int64_t{4} * args.columns : 0));
  // Warps by work; where there are both kinds, each has some.
  const int64_t warps = int64_t{launched.grid.x} * kOneRowWarps;
  const int64_t shared_tasks = args.shared.slots * args.shared.tasks;
  args.shared_warps = static_cast<int>((warps * shared_tasks + tasks - 1) / tasks);
  if (shared_tasks < tasks) args.shared_warps = std::min(args.shared_warps, static_cast<int>(warps) - 1);
  return with_types(first.type, second.type, [&]<quant::Type Routed, quant::Type Shared>() {
    launch(context, row_gated<Routed, Shared>, launched, args);
  });
}

bool gates_one_row(quant::Type type) {
  return with_type(type, [&]<quant::Type>() {});
}

}  // namespace sluice::backend::cuda
