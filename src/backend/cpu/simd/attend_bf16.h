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

/// Two rows at a time; then rows of zeroes up to a multiple of 32, because their weights are zero and a NaN
/// there would not be.
template <typename T>
void decode(const T* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                              23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const int64_t stride = key_stride(shape), pairs = pair_stride(shape);
  auto* keys = reinterpret_cast<uint16_t*>(tile) + first * stride;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile) + kChunkRows * stride + first / 2 * pairs;
  const auto row = [&](int64_t t) { return t < count ? rows + t * shape.width : nullptr; };
  for (int64_t t = 0; t < round_up(count, 32); t += 2, keys += 2 * stride, values += pairs) {
    const T *even = row(t), *odd = row(t + 1);
    for (int64_t c = 0; c < stride; c += 32) {
      const __m512 a = columns_of(even, c, shape.width), b = columns_of(even, c + 16, shape.width);
      const __m512 d = columns_of(odd, c, shape.width), e = columns_of(odd, c + 16, shape.width);
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

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode(rows, shape, first, count, tile);
}
void decode_f32(const float* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode(rows, shape, first, count, tile);
}

/// Columns c to c + 31 of two rows as pairs of values, as far as these go.
inline void store_pairs(__m512i even, __m512i odd, int64_t c, int64_t pairs, uint16_t* values) {
  if (2 * c < pairs) _mm512_storeu_si512(values + 2 * c, pairs_of(even, odd, false));
  if (2 * (c + 16) < pairs) _mm512_storeu_si512(values + 2 * (c + 16), pairs_of(even, odd, true));
}

/// The keys alone.
void decode_q8_keys(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  constexpr int64_t kScales = 16, kBlock = kScales * kQ8Run;  // of a vector, and the codes under them
  const int64_t stride = key_stride(shape);
  auto* out = reinterpret_cast<uint16_t*>(tile) + first * stride;
  const auto numbers = [](const int8_t* codes, __m512 scale) {
    const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
  };
  const std::byte* row = rows.at;
  for (int64_t t = 0; t < count; ++t, row += rows.row_bytes, out += stride) {
    const auto* codes = reinterpret_cast<const int8_t*>(row);
    const auto* scales = reinterpret_cast<const uint16_t*>(row + rows.scales_at);
    const auto* exact = reinterpret_cast<const uint16_t*>(row + rows.exact_at);
    for (int64_t block = 0; block < rows.coded; block += kBlock, scales += kScales) {
      const int64_t left = (rows.coded - block) / kQ8Run, runs = left < kScales ? left : kScales;
      alignas(64) float steps[kScales];
      _mm512_store_ps(steps, columns_of(scales, 0, runs));
      for (int64_t run = 0; run < runs; ++run, codes += kQ8Run) {
        const __m512 scale = _mm512_set1_ps(steps[run]);
        _mm512_storeu_si512(out + block + run * kQ8Run,
                            to_bf16(numbers(codes, scale), numbers(codes + 16, scale)));
      }
    }
    for (int64_t c = rows.coded; c < stride; c += 32) {
      const int64_t at = c - rows.coded, there = shape.width - rows.coded;
      _mm512_storeu_si512(out + c, to_bf16(columns_of(exact, at, there), columns_of(exact, at + 16, there)));
    }
  }
  const int64_t rest = (round_up(count, 32) - count) * stride;
  for (int64_t i = 0; i < rest; i += 32) _mm512_storeu_si512(out + i, _mm512_setzero_si512());
}
void decode_q8(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  decode_q8_keys(rows, shape, first, count, tile);
  if (!kValuesInPairs) return;
  const int64_t stride = key_stride(shape), pairs = pair_stride(shape);
  const uint16_t* key = reinterpret_cast<uint16_t*>(tile) + first * stride;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile) + kChunkRows * stride + first / 2 * pairs;
  for (int64_t t = 0; t < round_up(count, 32); t += 2, key += 2 * stride, values += pairs) {
    for (int64_t c = 0; 2 * c < pairs; c += 32) {
      store_pairs(_mm512_loadu_si512(key + c), _mm512_loadu_si512(key + stride + c), c, pairs, values);
    }
  }
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
      if (kValuesInPairs) store_pairs(even, odd, c, pairs, values);
    }
  }
}
