// Attention of grouped queries, of the tier generic.
#include <cstdint>
#include <initializer_list>

#include "backend/cpu/simd/grouped.h"
#include "base/half.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_generic.h"

void from_f16(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(x[i]);
}

// Lanes first: it is written against it.
#include "backend/cpu/simd/grouped_body.h"

}  // namespace

extern const GroupedKernels kGroupedGeneric;
const GroupedKernels kGroupedGeneric = kTable;

}  // namespace sluice::backend::cpu
