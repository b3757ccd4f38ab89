// Attention over expanded keys and values on AVX-512 with BF16.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/expanded_softmax.h"
#include "backend/cpu/simd/groups.h"
#include "backend/cpu/simd/pairs_avx512.h"
#include "backend/cpu/simd/turn_avx512.h"

constexpr int kMostRows = 6, kMostPanels = 4;  // 24 sums, 4 right sides, and left sides out of memory

/// The product of M rows and N panels of 16 columns.
template <bool adds, int M, int N>
void multiply_block(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t panel, int64_t inner,
                    float* c, int64_t c_stride) {
  __m512 sums[M][N];
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n)
      sums[m][n] = adds ? _mm512_loadu_ps(c + m * c_stride + n * 16) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < inner; i += 2, b += 32) {
    __m512i right[N];
    for (int n = 0; n < N; ++n) right[n] = _mm512_loadu_si512(b + n * panel);
    for (int m = 0; m < M; ++m) {
      int32_t pair;
      __builtin_memcpy(&pair, a + m * a_stride + i, sizeof pair);
      const __m512i left = _mm512_set1_epi32(pair);
      for (int n = 0; n < N; ++n)
        sums[m][n] = _mm512_dpbf16_ps(sums[m][n], (__m512bh)left, (__m512bh)right[n]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(c + m * c_stride + n * 16, sums[m][n]);
  }
}

template <bool adds>
void multiply_as(const uint16_t* a, int64_t a_stride, int64_t rows, const uint16_t* b, int64_t panel,
                 int64_t inner, int64_t columns, float* c, int64_t c_stride, Softmax*) {
  for (int64_t n = 0; n < columns / 16; n += kMostPanels) {
    const int64_t panels = std::min<int64_t>(kMostPanels, columns / 16 - n);
    in_groups(rows, kMostRows, [&](int64_t first, int64_t size) {
      with_size<kMostPanels>(panels, [&](auto wide) {
        with_size<kMostRows>(size, [&](auto high) {
          multiply_block<adds, decltype(high)::value, decltype(wide)::value>(
              a + first * a_stride, a_stride, b + n * panel, panel, inner, c + first * c_stride + n * 16,
              c_stride);
        });
      });
    });
  }
}

constexpr auto multiply = multiply_as<false>, multiply_adding = multiply_as<true>,
               multiply_passing = multiply;

#include "backend/cpu/simd/expanded_body.h"

void nothing() {}

}  // namespace

extern const ExpandedKernels<uint16_t> kExpandedAvx512Bf16;
const ExpandedKernels<uint16_t> kExpandedAvx512Bf16{"avx512 bf16", nothing, nothing, k_panel,
                                                    v_panel,       query,   expand,  arrange,
                                                    attend,        nullptr, nullptr, kLog2E};

}  // namespace sluice::backend::cpu
