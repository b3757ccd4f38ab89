// The kernels of this backend, one file an op.
#pragma once

#include "backend/cpu/kernel.h"

namespace sluice::backend::cpu {

extern const Kernel kEmbed, kRmsNorm, kMatmul, kMatmulAdd, kHeadMatmulColumns, kHeadMatmulRows, kRope,
    kKvAppend, kMlaAttend, kRoute, kSiluMul, kAdd, kGatherRows, kGateUp, kMoeGateUp, kMoeDownAdd,
    kExpertMatmul, kExpertCombine;
extern const Kernel kAttend, kAttentionTemperature, kAddBias, kExpertBias, kMlaValues, kCausalConv, kCopy,
    kAllReduce, kAllGather, kSigmoidMul, kDeltaRule, kScale;

}  // namespace sluice::backend::cpu
