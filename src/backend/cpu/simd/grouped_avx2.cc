// Attention of grouped queries, of the tier avx2.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

#include "backend/cpu/simd/grouped.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx2.h"

void from_f16(const uint16_t* x, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < count; ++i) out[i] = _cvtsh_ss(x[i]);
}

// Lanes first: it is written against it.
#include "backend/cpu/simd/grouped_body.h"

}  // namespace

extern const GroupedKernels kGroupedAvx2;
const GroupedKernels kGroupedAvx2 = kTable;

}  // namespace sluice::backend::cpu
