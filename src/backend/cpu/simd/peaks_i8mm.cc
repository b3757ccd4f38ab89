// The loop of processors with I8MM.
#include <arm_neon.h>

#include "backend/cpu/simd/peaks_chains.h"

namespace sluice::backend::cpu {

void int8_i8mm(int64_t rounds) {
  volatile int source = 3;
  const int8x16_t factor = vdupq_n_s8(static_cast<int8_t>(source));
  run_chains(
      rounds, [&] { return vdupq_n_s32(source); },
      [&](int32x4_t& sum) {
        sum = vmmlaq_s32(sum, factor, factor);
        __asm__ volatile("" : "+w"(sum));  // or rounds would be put together
      },
      [&](int32x4_t sum) { source = vgetq_lane_s32(sum, 0); }, Chains());
}

}  // namespace sluice::backend::cpu
