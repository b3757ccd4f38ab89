// Thread-block clusters (compute capability 9.0): neighbouring blocks that see each other's shared memory. On
// older devices kernels that use this are never chosen.
#pragma once

#include <cstdint>

namespace sluice::backend::cuda {

/// Blocks of a cluster that every device of 9.0 grants.
inline constexpr int kMostInCluster = 8;

__device__ inline unsigned cluster_rank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

/// All threads of all blocks meet; what they wrote before, to their own or others' shared memory, is seen
/// after.
__device__ inline void cluster_meet() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}

/// Writes a float to where block `rank` of the cluster has `at`, a place in this block's shared memory.
__device__ inline void store_at_rank(float* at, unsigned rank, float value) {
#if __CUDA_ARCH__ >= 900
  const auto local = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#endif
}

}  // namespace sluice::backend::cuda
