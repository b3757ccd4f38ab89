// Reductions within a warp and within a thread block, in an order that never varies.
#pragma once

namespace sluice::backend::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

/// The sum over the `lanes` (a power of two) neighbouring lanes that this lane belongs to. Unrolled: a loop
/// would cost more than shuffles that are not needed.
__device__ inline float lane_sum(float value, int lanes = 32) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, step);
    if (step < lanes) value += other;
  }
  return value;
}

/// Sums of several values (a power of two) over the warp: lane l gets that of value l / (32 / kCount), the
/// same as lane_sum's. Lanes hand each other the values that they do not go on with: kCount - 1 shuffles and
/// those of the last one, where kCount sums take 5 kCount.
template <int kCount, int kStep = 16>
__device__ __forceinline__ float lane_sums(const float (&value)[kCount]) {
  static_assert((kCount == 1 || kCount <= 2 * kStep) && (kCount & (kCount - 1)) == 0);
  if constexpr (kCount == 1) {
    float sum = value[0];
#pragma unroll
    for (int step = kStep; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    return sum;
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (threadIdx.x & kStep) != 0;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float low = value[i], high = value[i + kHalf];
      kept[i] = (upper ? high : low) + __shfl_xor_sync(kWholeWarp, upper ? low : high, kStep);
    }
    return lane_sums<kHalf, kStep / 2>(kept);
  }
}

__device__ inline float lane_max(float value, int lanes = 32) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (step < lanes) value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, step));
  }
  return value;
}

/// The sum over the block's threads, on all of them. `partial` is shared memory of 33 floats; the block
/// meets.
__device__ inline float block_sum(float value, float* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = lane_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane_sum(lane < warps ? partial[lane] : 0.0f);
  __syncthreads();
  return value;
}

}  // namespace sluice::backend::cuda
