// The attention kernels of the tier avx512 on processors with AVX512-FP16: those of 16 bits, whose tile comes
// of halves without a way through float32.
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
// And each of these needs those before it.
#include "backend/cpu/simd/attend_rows.h"
#include "backend/cpu/simd/attend_softmax.h"
#include "backend/cpu/simd/int16_avx512.h"
// Rows and Int16 first.
#include "backend/cpu/simd/attend_int16.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

/// Below this sum of squares what numbers are multiplied with would be no half, and far below it squares
/// would not be exact.
constexpr float kLeastSquares = 0.5f;
/// A sum of squares of halves may be too small by as much, a square by less.
constexpr float kSquaresMargin = 1.01f;

inline __m512h load_halves(const uint16_t* at) { return _mm512_castsi512_ph(_mm512_loadu_si512(at)); }

/// The sum of a row's squares and the largest of them, as halves: infinite where they are too large.
inline void squares_of(const uint16_t* row, int64_t width, float* sum, uint16_t* largest) {
  __m512h sums[2] = {_mm512_setzero_ph(), _mm512_setzero_ph()};
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < width; i += 32) {
    const __m512h x = load_halves(row + i), square = _mm512_mul_ph(x, x);
    sums[i / 32 % 2] = _mm512_add_ph(sums[i / 32 % 2], square);
    most = Int16::max(most, _mm512_castph_si512(square));  // none has a sign
  }
  const __m512i both = _mm512_castph_si512(_mm512_add_ph(sums[0], sums[1]));
  const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(both));
  *sum = Lanes::total(Lanes::add(low, _mm512_cvtph_ps(_mm512_extracti32x8_epi32(both, 1))));
  *largest = Int16::largest(most);
}

/// As decode_f16 does it, but what numbers are multiplied with is a half, too, rounded down.
void decode_f16_as_halves(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count,
                          float* tile) {
  if (shape.width % 32 != 0) return decode_f16(rows, shape, first, count, tile);
  const __m512i by_four = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);  // as Int16::pack leaves numbers
  float *scales = Operand::scales(tile, shape) + first, *largest = scales + kChunkRows;
  int16_t* out = reinterpret_cast<int16_t*>(tile) + first * shape.width;
  for (int64_t begin = 0; begin < count; begin += kRowsTogether) {
    const int64_t end = std::min(count, begin + kRowsTogether);
    alignas(64) float sums[kRowsTogether] = {};
    alignas(64) uint16_t squares[kRowsTogether] = {}, factors[kRowsTogether];
    for (int64_t t = begin; t < end; ++t)
      squares_of(rows + t * shape.width, shape.width, sums + (t - begin), squares + (t - begin));
    const auto margin = Lanes::all_f(kSquaresMargin);
    const Lanes::F most = Int16::sqrt(Lanes::mul(Lanes::halves(squares), margin));
    const Lanes::F worth = scales_of(Lanes::mul(Lanes::load_f(sums), margin), most);
    const __m256i inverse = _mm512_cvtps_ph(Lanes::div(Lanes::all_f(1), worth), _MM_FROUND_TO_ZERO);
    _mm256_store_si256(reinterpret_cast<__m256i*>(factors), inverse);
    Lanes::store_f(scales + begin, Lanes::div(Lanes::all_f(1), _mm512_cvtph_ps(inverse)));
    Lanes::store_f(largest + begin, most);
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t* row = rows + t * shape.width;
      if (!(sums[t - begin] >= kLeastSquares && sums[t - begin] < __builtin_inff())) {
        const auto as_floats = [&](int64_t, float* floats) {
          decode_halves(row, shape.width, floats, Operand::numbers(shape));
        };
        decode(as_floats, shape, first + t, 1, tile);
        continue;
      }
      const __m512h factor = _mm512_castsi512_ph(_mm512_set1_epi16(static_cast<int16_t>(factors[t - begin])));
      for (int64_t i = 0; i < shape.width; i += 32) {
        // A product has lost its last bits: beyond 2,048 numbers, below the half that says which is nearer.
        // What is left of it beside its number, which is a half, is exact but for a rounding of its own.
        const __m512h x = load_halves(row + i);
        const __m512i number = _mm512_cvtph_epi16(_mm512_mul_ph(x, factor));
        const __m512i rest = _mm512_cvtph_epi16(_mm512_fmsub_ph(x, factor, _mm512_cvtepi16_ph(number)));
        const __m512i numbers = _mm512_add_epi16(number, rest);
        _mm512_storeu_si512(out + t * shape.width + i, _mm512_permutexvar_epi64(by_four, numbers));
      }
    }
  }
}

}  // namespace

extern const AttendKernels kAttendAvx512Fp16;
const AttendKernels kAttendAvx512Fp16{
    "avx512 int16 of halves", 11,        tile_floats, packed_floats, work_floats, sums_stride,
    decode_f16_as_halves,     decode_q8, decode_f32,  pack,          attend,      merge_sums};

}  // namespace sluice::backend::cpu
