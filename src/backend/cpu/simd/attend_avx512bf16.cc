// The attention kernels of the tier avx512bf16: products of bfloat16 pairs, sums in float32.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_softmax.h"

// Pairs of values are put together in registers, beside the products, which leaves a shuffle unit idle.
constexpr bool kValuesInPairs = false;
#include "backend/cpu/simd/attend_bf16.h"

#include "backend/cpu/simd/totals_avx512.h"

struct Operand : FloatSums {
  static constexpr bool kAsksWithin = true;  // ten lines at once are more than a core has room for
  using Number = uint16_t;
  using Vector = __m512i;
  static constexpr int kGroup = 5, kValueGroup = 5, kValueBlock = 4;
  static constexpr int kNumbers = 32;
  static constexpr int kRows = 2;                           // a pair
  static constexpr int64_t kWeightStride = 2 * kChunkRows;  // they lie where the scores lay

  static int64_t stride(AttendShape shape) { return key_stride(shape) / 2; }
  static int64_t numbers(AttendShape shape) { return key_stride(shape); }
  static Vector load(const uint16_t* at) { return _mm512_loadu_si512(at); }
  /// Two rows' numbers side by side, for N * 16 columns.
  template <int N>
  static void load_values(const uint16_t* rows, int64_t stride, Vector (&v)[N]) {
    if constexpr (N == 1) {
      v[0] = pairs_of(load_half(rows), load_half(rows + stride), false);
    } else {
      for (int n = 0; n < N; n += 2) {
        const Vector row = load(rows + n * 16), next = load(rows + stride + n * 16);
        v[n] = pairs_of(row, next, false), v[n + 1] = pairs_of(row, next, true);
      }
    }
  }
  static Vector load_half(const uint16_t* at) {
    return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static Vector repeat(const uint16_t* at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static Lanes::F multiply_add(Vector a, Vector b, Lanes::F sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static const uint16_t* keys(const float* tile) { return reinterpret_cast<const uint16_t*>(tile); }
  static void store_scores(const Sum* sums, const float*, int64_t, const float*, int64_t, AttendShape,
                           float* scores) {
    store_totals(sums, scores);
  }
  /// To bfloat16, in place, each pair of rows in a word; the total becomes the rounded ones'.
  static void make_weights(float* weights, int64_t end, const float*, AttendShape, float* total) {
    auto* out = reinterpret_cast<uint16_t*>(weights);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t t = 0; t < end; t += 32) {
      const __m512i rounded = to_bf16(_mm512_loadu_ps(weights + t), _mm512_loadu_ps(weights + t + 16));
      _mm512_storeu_si512(out + t, rounded);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-65536))));
    }
    *total = _mm512_reduce_add_ps(sum);
  }
};

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  auto* out = reinterpret_cast<uint16_t*>(packed);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t c = 0; c < key_stride(shape); c += 32, out += 32) {
      _mm512_storeu_si512(out,
                          to_bf16(columns_of(q[i], c, shape.width), columns_of(q[i], c + 16, shape.width)));
    }
  }
}

// Operand first.
#include "backend/cpu/simd/attend_body.h"

void attend_pages(const float* packed, const int32_t* counts, int64_t queries, const uint16_t* const* pages,
                  AttendShape shape, float scale, float* work, Ahead ahead, ChunkResult result) {
  attend_keys(packed, counts, queries, {{pages[0], pages[1]}, shape.width}, nullptr, shape, scale, work,
              ahead, result);
}

}  // namespace

extern const AttendKernels kAttendAvx512Bf16;
const AttendKernels kAttendAvx512Bf16{"avx512 bf16", 8,          tile_floats, packed_floats, work_floats,
                                      sums_stride,   decode_f16, decode_q8,   decode_f32,    pack,
                                      attend,        merge_sums, decode_bf16, attend_pages,  kAlwaysInPlace};

}  // namespace sluice::backend::cpu
