// Attention's tile in bfloat16, for the tiers that multiply pairs of such numbers: keys as rows, and values
// as pairs of rows, column by column. Include it inside an anonymous namespace only, after AVX-512's Lanes
// and attend_softmax.h.
//
// A cache row's 11 bits become 8 and a product's error 2^-9 of it at most, without a bias: scores are sums of
// hundreds of them, and results are sums over the context.

/// bfloat16 numbers of a key, and of a pair of value rows.
constexpr int64_t key_stride(AttendShape shape) { return round_up(shape.width, 32); }
constexpr int64_t pair_stride(AttendShape shape) { return 2 * round_up(shape.rank, 16); }

int64_t tile_floats(AttendShape shape) {
  return (kChunkRows * key_stride(shape) + kChunkRows / 2 * pair_stride(shape)) / 2;
}
const uint16_t* values_of(const float* tile, AttendShape shape) {
  return reinterpret_cast<const uint16_t*>(tile) + kChunkRows * key_stride(shape);
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
  for (int64_t t = 0; t < round_up(count, 32); t += 2, keys += 2 * stride, values += pairs) {
    const T* even = t < count ? rows + t * shape.width : nullptr;
    const T* odd = t + 1 < count ? rows + (t + 1) * shape.width : nullptr;
    for (int64_t c = 0; c < stride; c += 32) {
      const __m512 a = columns_of(even, c, shape.width), b = columns_of(even, c + 16, shape.width);
      const __m512 d = columns_of(odd, c, shape.width), e = columns_of(odd, c + 16, shape.width);
      _mm512_storeu_si512(keys + c, to_bf16(a, b));
      _mm512_storeu_si512(keys + stride + c, to_bf16(d, e));
      if (2 * c < pairs) {
        _mm512_storeu_si512(values + 2 * c, _mm512_permutexvar_epi16(interleave, to_bf16(a, d)));
      }
      if (2 * (c + 16) < pairs) {
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

/// Weights [end] to bfloat16, in place, each pair of rows in a word; the total becomes the rounded ones'.
inline void weights_to_bf16(const float* weights, int64_t end, uint16_t* out, float* total) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t t = 0; t < end; t += 32) {
    const __m512i rounded = to_bf16(_mm512_loadu_ps(weights + t), _mm512_loadu_ps(weights + t + 16));
    _mm512_storeu_si512(out + t, rounded);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-65536))));
  }
  *total = _mm512_reduce_add_ps(sum);
}
