// The small kernels of the tier avx512.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"

void to_f16(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xFFFF : (1u << (count - i)) - 1);
    const __m256i halves = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_mask_storeu_epi16(out + i, mask, halves);
  }
}

#include "backend/cpu/simd/small_body.h"

}  // namespace

extern const SmallKernels kSmallAvx512;
const SmallKernels kSmallAvx512 = kTable;

}  // namespace sluice::backend::cpu
