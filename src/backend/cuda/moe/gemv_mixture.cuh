// norm_moe_gate_up of one row or two and the moe_down_add behind it in one launch: what the files of its
// kernels share. The kernels (gemv_mixture_kernel.cuh, gemv_mixture_rows_kernel.cuh) are compiled for the
// types of routed experts in several files (gemv_mixture_*.cu).
#pragma once

#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/moe/gemv_down.cuh"
#include "backend/cuda/moe/gemv_routed.cuh"
#include "backend/cuda/moe/gemv_rows.cuh"

namespace sluice::backend::cuda::mixture {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32;
inline constexpr int kOutputs = kWarps / 2;  ///< of moe_down_add, a thread block's: two warps share one

/// How the lanes of a warp copy a plane of some rows.
struct PlaneCopy {
  int bytes, at;      ///< of a row; where a stage has the first
  int piece, pieces;  ///< bytes at a time, and how many of them a row has
  uint32_t inverse;   ///< 2^32 / pieces, of two and more

  /// Which row piece `at` of them all is of.
  __device__ int row_of(int at) const {
    return pieces > 1 ? static_cast<int>(__umulhi(static_cast<uint32_t>(at), inverse)) : at;
  }
};
struct StageCopy {
  PlaneCopy codes, high, scale, super;
};

/// moe_down_add. Its inputs lie in flagged slots, a row's of the experts and then of the shared ones.
struct Down {
  CodePlanes planes, shared_planes;
  gemv_down::Stage stage, shared_stage;  // of an output: the experts' rows of a row, and the shared ones' row
  StageCopy copy, shared_copy;
  int first_row, matrix_rows, shared_row;
  int blocks, shared_blocks;  // of a row
  int rows;
  Rows<float> residual, out;
  int codes_at, staged_at;  // in shared memory
};

struct Args {
  GatedPlanes shared, routed;
  routed::Router router;
  const float* in;
  int columns, blocks, lanes;  // blocks: of a row
  int shared_warps;            // of the launch
  Down down;
};

/// Of two rows.
struct RowsArgs {
  gemv_rows::Args gated;
  Down down;
  NormedQ8Rows coded;         // for the norm_matmul behind
  int routed_blocks, of_row;  // of a row's inputs: the experts', and all
};

/// Start the kernels for routed experts of type Routed. False: not compiled for the other types.
template <Type Routed>
bool launch_mixture(const Context& context, Type shared, Type down, Type shared_down, const Args& args,
                    const LaunchShape& shape);
template <Type Routed>
bool launch_mixture(const Context& context, Type shared, Type down, Type shared_down, const RowsArgs& args,
                    const LaunchShape& shape);

/// Calls start.template operator()<Shared, Down, SharedDown>() for the types that are compiled; else false.
template <Type Routed, typename Start>
bool with_mixture_types(Type shared, Type down, Type shared_down, Start&& start) {
  const auto is = [&]<Type Shared, Type Down, Type SharedDown>() {
    return shared == Shared && down == Down && shared_down == SharedDown &&
           (start.template operator()<Shared, Down, SharedDown>(), true);
  };
  using enum Type;
  if constexpr (Routed == Q4_0) {
    return is.template operator()<Q4_0, Q4_0, Q4_0>() || is.template operator()<Q4_0, Q4_1, Q4_1>() ||
           is.template operator()<Q5_K, Q4_0, Q6_K>() || is.template operator()<Q5_K, Q4_1, Q6_K>();
  }
  if constexpr (Routed == Q4_K) {
    return is.template operator()<Q4_K, Q4_K, Q4_K>() || is.template operator()<Q4_K, Q6_K, Q6_K>();
  }
  return false;
}

/// The form by which norm_moe_gate_up of one row or two leaves moe_down_add nothing to do, where one launch
/// serves both; else its selection.
std::optional<FormSpec> given_to_down(const program::Program& program, program::TensorId ids,
                                      const Sizes& sizes);
bool sums_experts(const program::Program& program, program::TensorId ids, const Sizes& sizes);
/// Slots of the mailbox. rows: of the step.
int64_t slots_of_mixture(const program::Program& program, const program::NormMoeGateUp& op, int64_t rows);
/// Of GemvGated and GemvRoute as route_gemv has them.
void launch_mixture_of(const program::Program& program, const program::MoeDownAdd& op, const Context& context,
                       const GemvGated& gated, const GemvRoute& route);
/// Of what rows_routed gets, but for its warps.
void launch_mixture_of(const program::Program& program, const program::MoeDownAdd& op, const Context& context,
                       const gemv_rows::Args& gated, Type routed, Type shared);

}  // namespace sluice::backend::cuda::mixture
