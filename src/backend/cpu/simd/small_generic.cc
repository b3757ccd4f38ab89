// The small kernels of the tier generic.

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "backend/cpu/simd/small.h"
#include "base/half.h"
namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_generic.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"

void to_f16(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = f32_to_f16(x[i]);
}

#include "backend/cpu/simd/small_body.h"

}  // namespace

extern const SmallKernels kSmallGeneric;
const SmallKernels kSmallGeneric = kTable;

}  // namespace sluice::backend::cpu
