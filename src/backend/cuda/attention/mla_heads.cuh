// What the kernels of mla_heads for one row share: a cluster a head for a short context
// (mla_heads_ctx512.cu), whose first half also makes the queries for a long one (mla_heads_split_kv.cu);
// neither clusters nor much shared memory (mla_heads_sm80.cu). Which one: mla_heads.cu. norm_mla_heads.cu,
// which begins a step earlier, takes the same arguments.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/attention/append_row.cuh"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/prim/rope.cuh"

namespace sluice::backend::cuda {

inline constexpr int kHeadThreads = 256;         ///< of a block that makes queries or values of a head
inline constexpr int kQueriesOfBlock = 32;       ///< of a head, that a block of a cluster makes
inline constexpr int kMostQueryColumns = 2048;   ///< of the low-rank query
inline constexpr int kMostNope = 192;            ///< columns of a head's queries that are not rotated
inline constexpr int kClusterBytes = 99 * 1024;  ///< of shared memory that its blocks have at most

/// A row's latent queries as matrix instructions take them: per head, times a power of two (1 / unscale) that
/// keeps them far from the ends of a half's range, split into two halves a number (high, and the rounding
/// error of high). Both are [heads / 8][576 / 16][lane][2 pairs]: operand b of prim/mma.cuh, whose columns
/// are heads.
struct SplitQueries {
  static constexpr int kSteps = 576 / 16, kTileBytes = kSteps * 32 * 8;  ///< a tile: eight heads
  uint32_t *first, *second;
  float* unscale;  ///< [head]

  static int64_t words(int64_t heads) { return (heads + 7) / 8 * (kTileBytes / 4); }
  /// Where a lane's two pairs lie, in units of them.
  __device__ static int at(int tile, int step, int lane) { return (tile * kSteps + step) * 32 + lane; }
  /// Puts columns 2 * pair and the next one of a head.
  __device__ void put(int head, int pair, float x, float y) const {
    const int word = at(head / 8, pair / 8, head % 8 * 4 + pair % 4) * 2 + pair % 8 / 4;
    const __half2 high = __floats2half2_rn(x, y);
    const __half2 low = __floats2half2_rn(x - __low2float(high), y - __high2float(high));
    first[word] = *reinterpret_cast<const uint32_t*>(&high);
    second[word] = *reinterpret_cast<const uint32_t*>(&low);
  }
};

struct MlaHeadsArgs {
  StepView step;
  Rows<float> in, out;
  const float *q_norm, *kv, *kv_norm, *factors;
  Matrix q, k_b, v_b;  ///< q.codes null: `in` holds the queries; v_b.codes null: `out` gets latent queries
  Cache cache;
  int layer, cluster, nope;
  int each;            ///< values of a block, whole blocks of 32
  char* form_at;       ///< null, or the values quantised: a row of activations of all heads
  SplitQueries split;  ///< where latent queries go instead of to `out`, or null
  float scale, epsilon;
  RopeTable rope;
};

/// A cluster a head; the row enters the cache.
void start_clusters(const MlaHeadsArgs& args, const Context& context);

/// The same for a long context: clusters for the queries, attention over all SMs, values.
void start_split_kv(const MlaHeadsArgs& args, const Context& context);
/// Whether its blocks fit; the scratch that it takes.
bool split_kv_fits(int64_t heads, bool coded);
int64_t split_kv_scratch_bytes(int64_t heads);

/// The same for any context without clusters, in pieces that fit into 99 KB of shared memory.
void start_sm80(MlaHeadsArgs args, const CacheRows& appended, const Context& context);
int64_t sm80_scratch_bytes(int64_t heads);

}  // namespace sluice::backend::cuda
