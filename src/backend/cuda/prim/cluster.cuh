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

/// This thread says to the cluster that it has come here; cluster_all waits until all threads have. What they
/// have made of Arrivals is seen then, and nothing else.
__device__ inline void cluster_here() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_all() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/// Counts the bytes that other blocks of the cluster (and this one) push into this block's shared memory: a
/// place in shared memory, the same in all blocks. A barrier of the whole cluster would wait for every
/// thread's global memory too, some thousand cycles.
struct Arrivals {
  uint64_t barrier;

  /// One thread calls it, before cluster_here.
  __device__ void begin() {
#if __CUDA_ARCH__ >= 900
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  /// bytes: that will come in all, or have come. The same thread calls it.
  __device__ void expect(int bytes) {
#if __CUDA_ARCH__ >= 900
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
  }
  /// Until all of them are there.
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    uint32_t there = 0;
    while (there == 0) {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
          " selp.u32 %0, 1, 0, p;\n}"
          : "=r"(there)
          : "r"(at)
          : "memory");
    }
#endif
  }
  /// Copies bytes (a multiple of 16) from `from` to where block `rank` has the same place, by TMA: after
  /// pushes_from_here of the threads that wrote them, and a barrier of the block. A request for a row costs
  /// what a push of one number does, so rows go this way. The block must stay until they are there:
  /// cluster_here once this block has what it waits for, and cluster_all at its end.
  __device__ void push_row(const void* from, int bytes, unsigned rank) { push(from, from, bytes, rank); }
  /// The same, to where that block has `to`.
  __device__ void push(const void* to, const void* from, int bytes, unsigned rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            remote(to, rank)),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes), "r"(remote(&barrier, rank))
        : "memory");
#endif
  }
  /// Pushes a number to where block `rank` has `at`, a place in this block's shared memory.
  __device__ void push(float* at, unsigned rank, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     remote(at, rank)),
                 "r"(__float_as_uint(value)), "r"(remote(&barrier, rank))
                 : "memory");
#endif
  }

 private:
  __device__ static uint32_t remote(const void* at, unsigned rank) {
    uint32_t place = 0;
#if __CUDA_ARCH__ >= 900
    const auto local = static_cast<uint32_t>(__cvta_generic_to_shared(at));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(local), "r"(rank));
#endif
    return place;
  }
};

/// What this thread has written to shared memory is seen by TMA (Arrivals::push_row).
__device__ inline void pushes_from_here() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// cluster_here, and what this thread has written, to its own or others' shared memory too, is seen after
/// their cluster_all (which acquires).
__device__ inline void cluster_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
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
