// What the two kernels of attention over all SMs share, for one row and a long context: by wgmma
// (mla_heads_split_kv_wgmma.cu), and by the matrix instructions of single warps (mla_heads_split_kv.cu).
#pragma once

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads.cuh"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

struct SplitKvArgs {
  StepView step;
  Cache cache;
  SplitQueries queries;  ///< by wgmma: as put_query_rows leaves them
  int layer, heads;
  float scale_log2;  ///< the scale of the scores times log2(e): weights are powers of two
  float2* weights;   ///< [cluster][head]: the largest score, the sum of the weights below it
  uint16_t* parts;   ///< [cluster][head][rank]: contexts, halves
};

inline constexpr int kInCluster = 8;
inline constexpr int kJoinedColumns = kMlaRank / kInCluster;  ///< that a block puts together
inline constexpr int kPartBytes = kJoinedColumns * 2 + 16;    ///< of a head's part of them: banks differ

/// What a block has for the others of its cluster, and where theirs arrive, in shared memory. Places are
/// those of `heads` rounded up to even, so that statistics to be pushed are whole 16 bytes.
struct BlockParts {
  int heads;
  char *outgoing, *incoming;  ///< [block][head][kPartBytes]: by whom it is for, by whom it is from
  float2* stats;              ///< [head]: the largest score, the sum of the weights below it
  float2* incoming_stats;     ///< [block][head]
  float* weights;             ///< [head][block]
  Arrivals* there;

  __device__ static int pushed(int heads) { return (heads + 1) / 2 * 2; }
  __device__ int slice() const { return pushed(heads) * kPartBytes; }
  /// What will arrive. One thread calls it, before cluster_here.
  __device__ static void expect(Arrivals& there, int heads) {
    there.begin();
    there.expect((kInCluster - 1) * pushed(heads) * (kPartBytes + static_cast<int>(sizeof(float2))));
  }
};

/// The blocks of a cluster push their parts of the contexts to each other: block r puts kJoinedColumns of all
/// of them together. Threads that have written `outgoing` and `stats` have let TMA see it; the block and the
/// cluster meet. kHeads: places at most, whole fours.
template <int kHeads>
__device__ __forceinline__ void join_blocks(const SplitKvArgs& p, const BlockParts& b, int first_head) {
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(cluster_rank());
  const int cluster = static_cast<int>(blockIdx.x) / kInCluster, pushed = b.pushed(b.heads),
            slice = b.slice();
  __syncthreads();
  cluster_all();
  if (thread < kInCluster && thread != rank) {
    b.there->push(b.incoming_stats + rank * pushed, b.stats, pushed * static_cast<int>(sizeof(float2)),
                  thread);
    b.there->push(b.incoming + rank * slice, b.outgoing + thread * slice, slice, thread);
  }
  b.there->wait();
  cluster_here();

  // Weights of the blocks' parts.
  if (const int head = thread / kInCluster, r = thread % kInCluster; head < kHeads) {
    const int known = min(head, b.heads - 1);
    const float2 of = r == rank ? b.stats[known] : b.incoming_stats[r * pushed + known];
    const float most = lane_max(of.x, kInCluster);
    const float weight = of.y > 0 ? exp2f(of.x - most) * of.y : 0.0f;  // blocks without positions have none
    const float total = lane_sum(weight, kInCluster);
    b.weights[thread] = total > 0 ? weight / total : 0.0f;
    if (rank == 0 && r == 0 && head < b.heads)
      p.weights[cluster * p.heads + first_head + head] = {most, total};
  }
  __syncthreads();
  // A thread eight columns of a head.
  constexpr int kEights = kJoinedColumns / 8;
  if (const int head = thread / kEights, at = thread % kEights; head < b.heads) {
    float value[8] = {};
#pragma unroll
    for (int r = 0; r < kInCluster; ++r) {
      const float weight = b.weights[head * kInCluster + r];
      const uint4 bits = reinterpret_cast<const uint4*>((r == rank ? b.outgoing : b.incoming) + r * slice +
                                                        head * kPartBytes)[at];
      const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
        value[2 * i] += weight * v.x, value[2 * i + 1] += weight * v.y;
      }
    }
    const int64_t part = cluster * p.heads + first_head + head;
    reinterpret_cast<uint4*>(p.parts + part * kMlaRank + rank * kJoinedColumns)[at] = {
        pack_halves(value[0], value[1]), pack_halves(value[2], value[3]), pack_halves(value[4], value[5]),
        pack_halves(value[6], value[7])};
  }
  cluster_all();
}

/// Starts attention by wgmma, to a cache of halves, on 9.0; how many clusters it has, parts of a head.
int attend_by_wgmma(const SplitKvArgs& args, int most_parts, const Context& context);

/// Puts columns 2 * pair and the next one of a head's latent query where wgmma's first operand has them, as a
/// TMA copy leaves rows of the cache (host/tensor_map.h): [eight rows][64 columns][row], units of 16 bytes
/// swizzled. Eight rows are the halves of eight heads, the next eight what these leave.
__device__ inline void put_query_rows(uint32_t* to, int head, int pair, float x, float y) {
  constexpr int kWords = 576 / 2, kEight = 8 * kWords;  // of a row, of eight
  const __half2 high = __floats2half2_rn(x, y);
  const __half2 low = __floats2half2_rn(x - __low2float(high), y - __high2float(high));
  const int row = head % 8, word = pair / 32 * 8 * 32 + row * 32 + (pair % 32 ^ row * 4);
  to[head / 8 * 2 * kEight + word] = *reinterpret_cast<const uint32_t*>(&high);
  to[(head / 8 * 2 + 1) * kEight + word] = *reinterpret_cast<const uint32_t*>(&low);
}

}  // namespace sluice::backend::cuda
