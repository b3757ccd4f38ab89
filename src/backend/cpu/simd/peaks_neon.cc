// The loops of the tier neon.
#include <arm_neon.h>

#include "backend/cpu/simd/peaks_chains.h"

namespace sluice::backend::cpu {

void f32_neon(int64_t rounds) {
  volatile float source = 0.5f;
  const float32x4_t factor = vdupq_n_f32(source);
  run_chains(
      rounds, [&] { return vdupq_n_f32(source); },
      [&](float32x4_t& sum) { sum = vfmaq_f32(factor, sum, factor); },
      [&](float32x4_t sum) { source = vgetq_lane_f32(sum, 0); }, Chains());
}

void int8_neon(int64_t rounds) {
  volatile int source = 3;
  const int8x16_t factor = vdupq_n_s8(static_cast<int8_t>(source));
  run_chains(
      rounds, [&] { return vdupq_n_s32(source); },
      [&](int32x4_t& sum) {
        sum = vdotq_s32(sum, factor, factor);
        __asm__ volatile("" : "+w"(sum));  // or rounds would be put together
      },
      [&](int32x4_t sum) { source = vgetq_lane_s32(sum, 0); }, Chains());
}

}  // namespace sluice::backend::cpu
