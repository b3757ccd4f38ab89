// Eight lanes of 32 bits in one AVX2 register. Include it inside an anonymous namespace only
// (simd/matmul_*.cc), after <immintrin.h>. What the functions do: lanes_avx512.h.

struct Lanes {
  static constexpr int kWidth = 8;
  static constexpr int kMaxTile = 4;
  static constexpr int kMaxFloatTile = 2;
  static constexpr bool kUnroll = true;
  static constexpr int kSharedFrom = 1;
  static constexpr int kManyFrom = 9;
  static constexpr bool kGivesNumbers = true;
  static constexpr bool kSumsAreFloats = false;
  static constexpr bool kAsksBySteps = false;
  static constexpr bool kAddsPairs = true, kPairs = false;
  using I = __m256i;
  using F = __m256;

  static I load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  static void store(void* at, I a) { _mm256_storeu_si256(static_cast<__m256i*>(at), a); }
  static void words_of_rows(const uint8_t* at, int64_t row_bytes, I (&words)[4]) {
    const auto row = [&](int64_t index) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + index * row_bytes));
    };
    I rows[4];
    for (int i = 0; i < 4; ++i)
      rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
    const I low[2] = {_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3])};
    const I high[2] = {_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3])};
    words[0] = _mm256_unpacklo_epi64(low[0], low[1]);
    words[1] = _mm256_unpackhi_epi64(low[0], low[1]);
    words[2] = _mm256_unpacklo_epi64(high[0], high[1]);
    words[3] = _mm256_unpackhi_epi64(high[0], high[1]);
  }
  static I all(int32_t value) { return _mm256_set1_epi32(value); }
  static I zero() { return _mm256_setzero_si256(); }
  static I shift_right(I a, int by) { return _mm256_srli_epi32(a, by); }
  static I shift_right_signed(I a, int by) { return _mm256_srai_epi32(a, by); }
  static I shift_left(I a, int by) { return _mm256_slli_epi32(a, by); }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  static I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static I plus(I a, I b) { return _mm256_add_epi32(a, b); }
  static I bytes(const void* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(at)));
  }
  static I words(const void* at) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(at)));
  }
  static I table(const uint8_t* entries) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
  }
  static I lookup(I table, I codes) { return _mm256_shuffle_epi8(table, codes); }
  static I gather(const uint32_t* table, I index) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index, 4);
  }

  static I four(const int8_t* at) {
    int32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return _mm256_set1_epi32(word);
  }
  /// Unsigned bytes times signed ones, two neighbours' products added up in 16 bits: codes of at most 7 bits.
  static I pairs(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
  /// The same for weights of eight bits, given as weight + 128, which would not fit: the weight's sign moves
  /// to the activation, and 128 * 127 * 2 does.
  static I pairs_of_bytes(I codes, I x) {
    const I weights = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    return pairs(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
  }
  static I start_bytes(int32_t) { return zero(); }
  static I plus_pairs(I a, I b) { return now(_mm256_add_epi16(a, b)); }
  /// sum + the two sums of every lane.
  static I plus_totals(I sum, I pairs) {
    return now(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }
  /// g++ puts off the additions of a chain to its end, and the products wait for them in memory; not so those
  /// whose sum is wanted at once.
  static I now(I sum) {
    asm("" : "+x"(sum));
    return sum;
  }

  static F all_f(float value) { return _mm256_set1_ps(value); }
  /// Into a register: g++ would load what is used twice a second time, beside each of its products.
  static F load_f(const float* at) {
    F numbers = _mm256_loadu_ps(at);
    asm("" : "+x"(numbers));
    return numbers;
  }
  static void store_f(float* at, F a) { _mm256_storeu_ps(at, a); }
  static F halves(const void* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
  }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }
  static I round(F a) { return _mm256_cvtps_epi32(a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static float largest(F a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  static float total(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static int32_t total(I a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
  }
  static void store_bytes(int8_t* at, I a) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packs_epi16(words, words));
  }
  /// Into the first-level cache, and into the second. In assembly: g++ 12 takes a function that only calls
  /// the intrinsic for one without any effect, and drops its calls.
  static void prefetch(const void* at) {
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(at)));
  }
  static void prefetch_far(const void* at) {
    asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(at)));
  }
};
