// The loops with AVX-512, VNNI and, where a processor has it, AVX512-BF16. Instructions by name: g++ 12
// copies every sum to another register and back in each round, which two units a cycle do not hide.
#include <immintrin.h>

#include "backend/cpu/simd/peaks_chains.h"
#include "backend/cpu/simd/peaks_read.h"

namespace sluice::backend::cpu {
namespace {

struct Vector {
  static constexpr int64_t kBytes = 64;
  __m512i bits = _mm512_setzero_si512();
  void join(const std::byte* data) { bits = _mm512_or_si512(bits, _mm512_load_si512(data)); }
  uint64_t fold() const { return _mm512_test_epi8_mask(bits, bits); }
};

}  // namespace

uint64_t read_avx512(const std::byte* data, int64_t bytes, ReadPattern pattern) {
  return read_as<Vector>(data, bytes, pattern);
}

void f32_avx512(int64_t rounds) {
  volatile float source = 0.5f;
  const __m512 factor = _mm512_set1_ps(source);
  run_chains(
      rounds, [&] { return _mm512_set1_ps(source); },
      [&](__m512& sum) {
        __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(factor));
      },
      [&](__m512 sum) { source = _mm512_cvtss_f32(sum); }, Chains());
}

void int8_avx512(int64_t rounds) {
  volatile int source = 3;
  const __m512i factor = _mm512_set1_epi8(static_cast<char>(source));
  run_chains(
      rounds, [&] { return _mm512_set1_epi32(source); },
      [&](__m512i& sum) {
        __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(factor));
      },
      [&](__m512i sum) { source = _mm512_cvtsi512_si32(sum); }, Chains());
}

/// Not among the tier's instructions: the caller asks the processor for it.
void bf16_avx512(int64_t rounds) {
  volatile float source = 0.5f;
  const __m512 factor = _mm512_set1_ps(source);
  run_chains(
      rounds, [&] { return _mm512_set1_ps(source); },
      [&](__m512& sum) {
        __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(factor));
      },
      [&](__m512 sum) { source = _mm512_cvtss_f32(sum); }, Chains());
}

}  // namespace sluice::backend::cpu
