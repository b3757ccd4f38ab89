// The loop of processors with AVX-VNNI.
#include <immintrin.h>

#include "backend/cpu/simd/peaks_chains.h"

namespace sluice::backend::cpu {

void int8_avxvnni(int64_t rounds) {
  volatile int source = 3;
  const __m256i factor = _mm256_set1_epi8(static_cast<char>(source));
  run_chains(
      rounds, [&] { return _mm256_set1_epi32(source); },
      [&](__m256i& sum) {
        sum = _mm256_dpbusd_avx_epi32(sum, factor, factor);
        __asm__ volatile("" : "+x"(sum));  // or rounds would be put together
      },
      [&](__m256i sum) { source = _mm256_cvtsi256_si32(sum); }, Chains());
}

}  // namespace sluice::backend::cpu
