// The loops with AVX2 and FMA.
#include <immintrin.h>

#include "backend/cpu/simd/peaks_chains.h"
#include "backend/cpu/simd/peaks_read.h"

namespace sluice::backend::cpu {
namespace {

struct Vector {
  static constexpr int64_t kBytes = 32;
  __m256i bits = _mm256_setzero_si256();
  void join(const std::byte* data) {
    bits = _mm256_or_si256(bits, _mm256_load_si256(reinterpret_cast<const __m256i*>(data)));
  }
  uint64_t fold() const { return static_cast<uint64_t>(_mm256_movemask_epi8(bits)); }
};

/// In assembly: g++ 12 keeps a part of the sums in memory otherwise, and the loop reaches 60% of the rate.
template <int bits>
void add(__m256i& sum, __m256i more) {
  if constexpr (bits == 16) {
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(more));
  } else {
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(more));
  }
}

}  // namespace

uint64_t read_avx2(const std::byte* data, int64_t bytes, ReadPattern pattern) {
  return read_as<Vector>(data, bytes, pattern);
}

void f32_avx2(int64_t rounds) {
  volatile float source = 0.5f;
  const __m256 factor = _mm256_set1_ps(source);
  run_chains(
      rounds, [&] { return _mm256_set1_ps(source); },
      [&](__m256& sum) { sum = _mm256_fmadd_ps(sum, factor, factor); },
      [&](__m256 sum) { source = _mm256_cvtss_f32(sum); }, Chains());
}

/// Bytes times bytes to pairs of 16 bits, which stay so: products with codes of four bits are widened after
/// eight additions only.
void int4_avx2(int64_t rounds) {
  volatile int source = 3;
  __m256i factor = _mm256_set1_epi8(static_cast<char>(source));
  run_chains(
      rounds, [&] { return _mm256_set1_epi32(source); },
      [&](__m256i& sum) {
        __asm__ volatile("" : "+x"(factor));  // another one each time, for all that the compiler knows
        add<16>(sum, _mm256_maddubs_epi16(factor, factor));
      },
      [&](__m256i sum) { source = _mm256_cvtsi256_si32(sum); }, Chains());
}

/// Whole numbers of 16 bits, pairs of products in 32: attention's.
void int16_avx2(int64_t rounds) {
  volatile int source = 3;
  __m256i factor = _mm256_set1_epi16(static_cast<int16_t>(source));
  run_chains(
      rounds, [&] { return _mm256_set1_epi32(source); },
      [&](__m256i& sum) {
        __asm__ volatile("" : "+x"(factor));  // another one each time, for all that the compiler knows
        add<32>(sum, _mm256_madd_epi16(factor, factor));
      },
      [&](__m256i sum) { source = _mm256_cvtsi256_si32(sum); }, Chains());
}

/// Bytes times bytes to pairs of 16 bits, pairs to 32 bits, and the addition: three instructions.
void int8_avx2(int64_t rounds) {
  volatile int source = 3;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i factor = _mm256_set1_epi8(static_cast<char>(source));
  run_chains(
      rounds, [&] { return _mm256_set1_epi32(source); },
      [&](__m256i& sum) {
        __asm__ volatile("" : "+x"(factor));  // another one each time, for all that the compiler knows
        add<32>(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(factor, factor), ones));
      },
      [&](__m256i sum) { source = _mm256_cvtsi256_si32(sum); }, Chains());
}

}  // namespace sluice::backend::cpu
