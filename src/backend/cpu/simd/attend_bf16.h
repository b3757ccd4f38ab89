// Attention's tile in bfloat16, for the tiers that multiply pairs of such numbers: keys as rows, and where
// `kValuesInPairs`, values once more as pairs of rows, column by column. Include it inside an anonymous
// namespace only, after AVX-512's Lanes and attend_softmax.h.
//
// A cache row's 11 bits become 8 and a product's error 2^-9 of it at most, without a bias: scores are sums of
// hundreds of them, and results are sums over the context.

#include "backend/cpu/simd/pairs_avx512.h"

/// bfloat16 numbers of a key, and of a pair of value rows.
constexpr int64_t key_stride(AttendShape shape) { return round_up(shape.width, 32); }
constexpr int64_t pair_stride(AttendShape shape) { return 2 * round_up(shape.rank, 16); }

int64_t tile_floats(AttendShape shape) {
  const int64_t values = kValuesInPairs ? kChunkRows / 2 * pair_stride(shape) : 0;
  return (kChunkRows * key_stride(shape) + values) / 2;
}

/// The low vector's numbers before the high one's.
inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// 16 numbers from column c on; zeroes past the row's `width`, and where there is no row.
inline __m512 columns_of(const uint16_t* row, int64_t c, int64_t width) {
  if (row == nullptr || c >= width) return _mm512_setzero_ps();
  if (c + 16 <= width) return Lanes::halves(row + c);
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << (width - c)) - 1), row + c));
}
inline __m512 columns_of(const float* row, int64_t c, int64_t width) {
  if (row == nullptr || c >= width) return _mm512_setzero_ps();
  const unsigned mask = c + 16 <= width ? 0xFFFF : (1u << (width - c)) - 1;
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), row + c);
}

/// A row of halves or floats; null: of zeroes.
template <typename T>
struct PlainRow {
  const T* at;
  __m512 columns(int64_t c, int64_t width) { return columns_of(at, c, width); }
};

/// A row of eight bits; null: of zeroes. Asked for its columns in order: scales are converted 16 at a time.
struct Q8Row {
  const int8_t* codes;
  const uint16_t *halves, *scales;
  int64_t coded;
  alignas(64) float steps[16] = {};

  static Q8Row of(const Q8Rows& rows, int64_t t, bool there) {
    const std::byte* at = rows.at + t * rows.row_bytes;
    return {there ? reinterpret_cast<const int8_t*>(at) : nullptr,
            reinterpret_cast<const uint16_t*>(at + rows.exact_at),
            reinterpret_cast<const uint16_t*>(at + rows.scales_at), rows.coded};
  }
  __m512 columns(int64_t c, int64_t width) {
    if (codes == nullptr) return _mm512_setzero_ps();
    if (c >= coded) return columns_of(halves, c - coded, width - coded);
    const int64_t run = c / kQ8Run;
    if (c % (16 * kQ8Run) == 0) {
      const int64_t left = coded / kQ8Run - run;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1);
      _mm512_store_ps(steps, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, scales + run)));
    }
    const __m512i numbers =
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + c)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(numbers), _mm512_set1_ps(steps[run % 16]));
  }
};

/// Two rows at a time, row(t, whether there is one); then rows of zeroes up to a multiple of 32, because
/// their weights are zero and a NaN there would not be.
template <typename Row>
void decode(const Row& row, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                              23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const int64_t stride = key_stride(shape), pairs = pair_stride(shape);
  auto* keys = reinterpret_cast<uint16_t*>(tile) + first * stride;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile) + kChunkRows * stride + first / 2 * pairs;
  for (int64_t t = 0; t < round_up(count, 32); t += 2, keys += 2 * stride, values += pairs) {
    auto even = row(t, t < count), odd = row(t + 1, t + 1 < count);
    for (int64_t c = 0; c < stride; c += 32) {
      const __m512 a = even.columns(c, shape.width), b = even.columns(c + 16, shape.width);
      const __m512 d = odd.columns(c, shape.width), e = odd.columns(c + 16, shape.width);
      _mm512_storeu_si512(keys + c, to_bf16(a, b));
      _mm512_storeu_si512(keys + stride + c, to_bf16(d, e));
      if (kValuesInPairs && 2 * c < pairs) {
        _mm512_storeu_si512(values + 2 * c, _mm512_permutexvar_epi16(interleave, to_bf16(a, d)));
      }
      if (kValuesInPairs && 2 * (c + 16) < pairs) {
        _mm512_storeu_si512(values + 2 * (c + 16), _mm512_permutexvar_epi16(interleave, to_bf16(b, e)));
      }
    }
  }
}

template <typename T>
void decode_plain(const T* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const auto row = [&](int64_t t, bool there) {
    return PlainRow<T>{there ? rows + t * shape.width : nullptr};
  };
  decode(row, shape, first, count, tile);
}
void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode_plain(rows, shape, first, count, tile);
}
void decode_f32(const float* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode_plain(rows, shape, first, count, tile);
}
void decode_q8(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode([&](int64_t t, bool there) { return Q8Row::of(rows, t, there); }, shape, first, count, tile);
}

/// As decode, of rows that are rounded already: nothing is converted.
void decode_bf16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const int64_t stride = key_stride(shape), pairs = pair_stride(shape);
  auto* keys = reinterpret_cast<uint16_t*>(tile) + first * stride;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile) + kChunkRows * stride + first / 2 * pairs;
  const auto numbers = [&](int64_t t, int64_t c) {
    const int64_t there = t < count ? shape.width - c : 0;
    const auto mask = static_cast<__mmask32>(there >= 32 ? ~0u : (1u << there) - 1);
    return _mm512_maskz_loadu_epi16(mask, rows + t * shape.width + c);
  };
  for (int64_t t = 0; t < round_up(count, 32); t += 2, keys += 2 * stride, values += pairs) {
    for (int64_t c = 0; c < stride; c += 32) {
      const __m512i even = numbers(t, c), odd = numbers(t + 1, c);
      _mm512_storeu_si512(keys + c, even);
      _mm512_storeu_si512(keys + stride + c, odd);
      if (!kValuesInPairs) continue;
      if (2 * c < pairs) _mm512_storeu_si512(values + 2 * c, pairs_of(even, odd, false));
      if (2 * (c + 16) < pairs) _mm512_storeu_si512(values + 2 * (c + 16), pairs_of(even, odd, true));
    }
  }
}
