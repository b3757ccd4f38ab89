// Products of float32 on tensor cores: a number is a sum of two of eleven bits (TF32), of whose products the
// smallest is left out. An error is some 2^-22 of a product. Knows no op.
#pragma once

#include "backend/cuda/prim/mma.cuh"

namespace sluice::backend::cuda {

/// A number as a sum of two of eleven bits; the bits behind the lower one's the hardware does not read.
struct Halved {
  uint32_t high, low;

  /// The nearest higher one: of the lower one a bit at most is lost.
  __device__ __forceinline__ explicit Halved(float v) { take(v, __float_as_uint(v) + 0x1000u); }
  /// The higher one cut off, in fewer instructions: of the lower one two bits are lost. For one of two
  /// factors, so that products of lower ones, which are left out, have either sign.
  static __device__ __forceinline__ Halved cut(float v) {
    Halved halved;
    halved.take(v, __float_as_uint(v));
    return halved;
  }

 private:
  Halved() = default;
  __device__ __forceinline__ void take(float v, uint32_t near) {
    high = near & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high));
  }
};

/// d + rest += a[16, 8] b[8, 8], laid out as of mma_16x8x8. What is left of products has sums of its own: the
/// hardware rounds each towards zero.
__device__ __forceinline__ void mma_float32(float (&d)[4], float (&rest)[4], const Halved (&a)[4], Halved b0,
                                            Halved b1) {
  const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  mma_16x8x8(rest, low, b0.high, b1.high);
  mma_16x8x8(rest, high, b0.low, b1.low);
  mma_16x8x8(d, high, b0.high, b1.high);
}

}  // namespace sluice::backend::cuda
