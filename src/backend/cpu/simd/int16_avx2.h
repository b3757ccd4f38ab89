// AVX2's vectors of numbers of 16 bits, for attend_int16.h. Include it inside an anonymous namespace only,
// after AVX2's Lanes.

/// Vectors of numbers of 16 bits.
struct Int16 {
  using Vector = __m256i;
  /// Queries that share registers.
  static constexpr int kGroup = 2, kValueGroup = 6;
  static constexpr bool kAsksWithin = false;

  /// Held in a register (lanes_avx2.h says why).
  static Vector load(const int16_t* at) {
    return Lanes::now(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  /// The addition in assembly: g++ would put it off, or leave copies of the sums behind.
  static Vector multiply_add(Vector a, Vector b, Vector sum) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
    return sum;
  }
  /// Numbers of a and b in turns, of the lower (upper) half of every 16 bytes.
  static Vector low_pairs(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
  static Vector high_pairs(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
  /// The total of each of four vectors.
  static __m128i totals(const Vector* v) {
    const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  }
  /// Words as numbers of 16 bits, four of a and four of b in turns; and in_order: all of a, then all of b.
  static Vector pack(Vector a, Vector b) { return _mm256_packs_epi32(a, b); }
  static Vector in_order(Vector packed) { return _mm256_permute4x64_epi64(packed, 0xD8); }
  /// The larger ones; and the largest of all. Without a sign.
  static Vector max(Vector a, Vector b) { return Lanes::now(_mm256_max_epu16(a, b)); }
  static uint16_t largest(Vector a) {
    __m128i half = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_xor_si128(half, _mm_set1_epi16(-1));  // there is a search for the smallest only
    return static_cast<uint16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(half)));
  }
  static Lanes::F sqrt(Lanes::F a) { return _mm256_sqrt_ps(a); }
  /// a, or zero where `of` is zero, whatever a is.
  static Lanes::F where_not_zero(Lanes::F of, Lanes::F a) {
    return _mm256_and_ps(_mm256_cmp_ps(of, Lanes::all_f(0), _CMP_NEQ_UQ), a);
  }
};
