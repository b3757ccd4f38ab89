// Expanded latent attention: launchers (attention/mla_expanded.cuh says what lies where).
#pragma once

#include "backend/cuda/attention/mla_expanded.cuh"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/rope.cuh"

namespace sluice::backend::cuda {

/// The weights of all heads as halves; the latents of all contexts, and the columns of keys that heads share.
void prepare_expansion(const Expanded& e, const Matrix& k_b, const Matrix& v_b, const Context& context);
/// Keys and values of a group of heads.
void expand_heads(const Expanded& e, const Context& context);
/// Values of the group's heads, for the rows of the plan's segments.
void attend_expanded(const AttendExpanded& args, const RopeTable& rope, const Context& context);

/// The last two by mma.sync, where there is no wgmma.
void mla_expand_sm80(const Expanded& e, const Context& context);
void mla_expanded_attend_sm80(const AttendExpanded& args, const RopeTable& rope, const Context& context);

}  // namespace sluice::backend::cuda
