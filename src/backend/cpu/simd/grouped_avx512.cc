// Attention of grouped queries, of the tier avx512.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

#include "backend/cpu/simd/grouped.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"

void from_f16(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xFFFF : (1u << (count - i)) - 1);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x + i)));
  }
}

// Lanes first: it is written against it.
#include "backend/cpu/simd/grouped_body.h"

}  // namespace

extern const GroupedKernels kGroupedAvx512;
const GroupedKernels kGroupedAvx512 = kTable;

}  // namespace sluice::backend::cpu
