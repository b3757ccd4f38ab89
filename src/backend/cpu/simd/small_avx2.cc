// The small kernels of the tier avx2.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx2.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"

void to_f16(const float* x, int64_t count, uint16_t* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) out[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}

#include "backend/cpu/simd/small_body.h"

}  // namespace

extern const SmallKernels kSmallAvx2;
const SmallKernels kSmallAvx2 = kTable;

}  // namespace sluice::backend::cpu
