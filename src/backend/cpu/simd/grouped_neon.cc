// Attention of grouped queries, of the tier neon.
#include <arm_neon.h>

#include <cstdint>
#include <initializer_list>

#include "backend/cpu/simd/grouped.h"
#include "base/half.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_neon.h"

void from_f16(const uint16_t* x, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
  for (; i < count; ++i) out[i] = f16_to_f32(x[i]);
}

// Lanes first: it is written against it.
#include "backend/cpu/simd/grouped_body.h"

}  // namespace

extern const GroupedKernels kGroupedNeon;
const GroupedKernels kGroupedNeon = kTable;

}  // namespace sluice::backend::cpu
