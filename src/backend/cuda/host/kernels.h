// The kernels that host/bind.cc chooses from, by the file that defines them.
#pragma once

#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

/// Bytes of shared memory that a thread block may ask for on every device since compute capability 8.0 (8.6
/// and 8.9 have the least).
inline constexpr int64_t kMostShared = 99 * 1024;

/// The same on a device of this architecture; 9.0 and 10.0 have more.
inline constexpr int64_t most_shared(int architecture) {
  return architecture == 90 || architecture == 100 ? 2 * kMostShared : kMostShared;
}

/// What a thread block that has an SM of 9.0 or 10.0 to itself may ask for.
inline constexpr int64_t kAllShared = 227 * 1024;

/// Positions up to which a context is short: the first bucket. There reading the cache once for every head
/// costs less than sharing it (H200, GLM-4.7-Flash: equal at about 650).
inline constexpr int64_t kCtx512 = 512;

/// Any sizes will do.
inline bool serves_all(const program::Program&, const program::Op&, const Sizes&) { return true; }

extern const Kernel kEmbed, kRmsNorm, kRope, kKvAppend, kSiluMul, kAdd, kAddBias, kExpertBias, kScale,
    kAttentionTemperature, kGatherRows, kExpertCombine;
extern const Kernel kCausalConv, kDeltaRule, kDeltaRuleChunked, kDeltaNet, kGatedNorm, kSigmoidMul;
extern const Kernel kRoute, kNormRoute, kNormRouteBatch, kNormMoeGateUp, kNormMoeGateUpRows,
    kNormMoeGateUpSmallBatch;
extern const Kernel kMatmul, kMatmulAdd, kNormMatmul, kNormMatmulSmallBatch;
extern const Kernel kHeadMatmulColumns, kHeadMatmulRows;
extern const Kernel kGateUp, kNormGateUp, kNormGateUpSmallBatch, kMoeGateUp, kExpertMatmul;
extern const Kernel kMoeDownAdd, kMoeDownAddRows;
extern const Kernel kMlaAttend, kAttend, kGqaQuery, kMlaQuery, kMlaQuerySmallBatch, kMlaQueryGemm, kMlaHeads,
    kMlaHeadsSplitKv, kMlaHeadsSm80, kMlaHeadsPrefill, kMlaHeadsSmallBatch, kNormMlaHeads;

// Steps of many rows, on tensor cores.
extern const Kernel kMatmulF32, kMatmulGemm, kNormMatmulGemm, kMatmulAddGemm, kGateUpGemm, kHeadMatmulGemm;
extern const Kernel kHeadMatmulSmallBatch;
extern const Kernel kMoeGateUpGemm, kMoeDownAddGemm, kExpertMatmulGemm;
extern const Kernel kMlaAttendSm90, kMlaAttendSm80, kAttendGqa, kGqaAttend;

}  // namespace sluice::backend::cuda
