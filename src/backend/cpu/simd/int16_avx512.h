// AVX-512's vectors of numbers of 16 bits, for attend_int16.h. Include it inside an anonymous namespace only,
// after AVX-512's Lanes.

/// Vectors of numbers of 16 bits (int16_avx2.h says what the functions do).
struct Int16 {
  using Vector = __m512i;
  static constexpr int kGroup = 5, kValueGroup = 10;
  /// Where ten lines are asked for at once, Intel's processors wait.
  static constexpr bool kAsksWithin = true;

  static Vector load(const int16_t* at) { return _mm512_loadu_si512(at); }
  /// In assembly: g++ would leave copies of the sums behind.
  static Vector multiply_add(Vector a, Vector b, Vector sum) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
  static Vector low_pairs(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
  static Vector high_pairs(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
  static __m128i totals(const Vector* v) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    // Lanes of a: v0 v1 v0 v1; of b: v2 v3 v2 v3; four times.
    const __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i halves =
        _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti32x8_epi32(quarters, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  }
  static Vector pack(Vector a, Vector b) { return _mm512_packs_epi32(a, b); }
  static Vector in_order(Vector packed) {
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), packed);
  }
  static Vector max(Vector a, Vector b) { return _mm512_max_epu16(a, b); }
  static uint16_t largest(Vector a) {
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(a), _mm512_extracti32x8_epi32(a, 1));
    __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    quarter = _mm_xor_si128(quarter, _mm_set1_epi16(-1));  // there is a search for the smallest only
    return static_cast<uint16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)));
  }
  static Lanes::F sqrt(Lanes::F a) { return _mm512_sqrt_ps(a); }
  static Lanes::F where_not_zero(Lanes::F of, Lanes::F a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of, Lanes::all_f(0), _CMP_NEQ_UQ), a);
  }
};
