// The small kernels of the tier neon.
#include <arm_neon.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_neon.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"

void to_f16(const float* x, int64_t count, uint16_t* out) {
  const auto four = [](float32x4_t numbers) { return vreinterpret_u16_f16(vcvt_f16_f32(numbers)); };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) vst1_u16(out + i, four(vld1q_f32(x + i)));
  for (; i < count; ++i) out[i] = vget_lane_u16(four(vdupq_n_f32(x[i])), 0);
}

#include "backend/cpu/simd/small_body.h"

}  // namespace

extern const SmallKernels kSmallNeon;
const SmallKernels kSmallNeon = kTable;

}  // namespace sluice::backend::cpu
