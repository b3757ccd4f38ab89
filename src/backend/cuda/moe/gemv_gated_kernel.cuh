// The kernel of gated products of one row (gate_up, norm_gate_up, moe_gate_up): the shared or dense matrix
// first, whose first blocks are asked for before the kernel waits; then the experts that were selected, whose
// ids are read here: nothing is gathered.
#pragma once

#include "backend/cuda/moe/gemv_gated.cuh"

namespace sluice::backend::cuda::gated {

/// A warp takes rows of the shared matrix or of experts, never both.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kGemvThreads, 2)
    row_gated(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kGemvWarps];
  const PdlLink pdl(timestamps);
  const int warp = warp_of_launch();
  const Activations x{0, args.columns, true, false};
  if (warp < args.shared_warps) {
    Walk<Shared> walk(args.shared, args.blocks, args.lanes, warp, args.shared_warps);
    walk.begin();
    if (args.norm == nullptr) {
      pdl.wait();
      quantize_row(x, args.in, nullptr, [] {});
      __syncthreads();
      walk.run(x);
      return;
    }
    float* const norm =
        reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
    fetch_norm(norm, args.norm, args.columns);
    pdl.wait();
    wait_for_copies();
    const float squares = quantize_row(x, args.in, norm, [] {});
    walk.run(x, reduce_for_norm(squares, partial, args.columns, args.epsilon));
  } else {
    Walk<Routed> walk(args.routed, args.blocks, args.lanes, warp - args.shared_warps,
                      warps_of_launch() - args.shared_warps);
    pdl.wait();
    walk.take_ids();
    quantize_row(x, args.in, nullptr, [&] { walk.begin(); });
    __syncthreads();
    walk.run(x);
  }
}

template <Type Routed>
bool launch_gated(const Context& context, Type shared, const Args& args, const LaunchShape& shape) {
  return with_second_type<Routed>(
      shared, [&]<Type, Type Shared>() { launch(context, row_gated<Routed, Shared>, shape, args); });
}

}  // namespace sluice::backend::cuda::gated
