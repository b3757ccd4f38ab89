// Sixteen lanes of 32 bits in one AVX-512 register. Include it inside an anonymous namespace only
// (simd/matmul_*.cc), after <immintrin.h>.

struct Lanes {
  static constexpr int kWidth = 16;
  static constexpr int kMaxTile =
      8;  // activation rows at once: 8 sums, 8 products and the weights fit 32 registers
  static constexpr int kMaxFloatTile = 4;
  static constexpr bool kUnroll = true;
  /// Blocks of so many groups and more are unpacked once for many rows (many_rows.h): 1 all, 8 those of 256
  /// columns, 9 none.
  static constexpr int kSharedFrom = 1;
  /// And from so many rows on.
  static constexpr int kManyFrom = 25;
  /// For attention over expanded keys in float32 (expanded_f32.h).
  static constexpr bool kGivesNumbers = false;
  /// Lines ahead are asked for one by one, beside the steps of products.
  static constexpr bool kAsksBySteps = true;
  static constexpr bool kAddsPairs = false;
  static constexpr bool kPairs =
      true;  // panels in pairs: 16 sums and products fit, and loads are what limits
  static constexpr bool kSumsAreFloats = true;
  using I = __m512i;
  using F = __m512;

  // --- integers ---
  /// Into a register, once, however many use it: registers are many, and g++ 12 would rather have each of
  /// these load it.
  static I load(const void* at) {
    I a = _mm512_loadu_si512(at);
    asm("" : "+v"(a));
    return a;
  }
  static void store(void* at, I a) { _mm512_storeu_si512(at, a); }
  /// The 16 bytes at `at` of as many rows as there are lanes, row_bytes apart: word i of each, for four
  /// words.
  static void words_of_rows(const uint8_t* at, int64_t row_bytes, I (&words)[4]) {
    const auto row = [&](int64_t index) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + index * row_bytes));
    };
    I rows[4];
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_castsi128_si512(row(i));
      rows[i] = _mm512_inserti32x4(rows[i], row(i + 4), 1);
      rows[i] = _mm512_inserti32x4(rows[i], row(i + 8), 2);
      rows[i] = _mm512_inserti32x4(rows[i], row(i + 12), 3);
    }
    const I low[2] = {_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3])};
    const I high[2] = {_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3])};
    words[0] = _mm512_unpacklo_epi64(low[0], low[1]);
    words[1] = _mm512_unpackhi_epi64(low[0], low[1]);
    words[2] = _mm512_unpacklo_epi64(high[0], high[1]);
    words[3] = _mm512_unpackhi_epi64(high[0], high[1]);
  }
  static I all(int32_t value) { return _mm512_set1_epi32(value); }
  static I zero() { return _mm512_setzero_si512(); }
  static I shift_right(I a, int by) { return _mm512_srli_epi32(a, static_cast<unsigned>(by)); }
  static I shift_right_signed(I a, int by) { return _mm512_srai_epi32(a, static_cast<unsigned>(by)); }
  static I shift_left(I a, int by) { return _mm512_slli_epi32(a, static_cast<unsigned>(by)); }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  static I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
  static I plus(I a, I b) { return _mm512_add_epi32(a, b); }
  /// 16 unsigned bytes at `at`, one a lane; 16-bit words likewise.
  static I bytes(const void* at) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(at)));
  }
  static I words(const void* at) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
  }
  /// A byte table of 16 entries, and the entries that the bytes of `codes` (0..15) name.
  static I table(const uint8_t* entries) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
  }
  static I lookup(I table, I codes) { return _mm512_shuffle_epi8(table, codes); }
  /// The words of a table in memory that the lanes of `index` name.
  static I gather(const uint32_t* table, I index) { return _mm512_i32gather_epi32(index, table, 4); }

  // --- products of codes ---
  /// Four signed bytes for every lane.
  static I four(const int8_t* at) {
    int32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
  }
  /// sum + the products of four unsigned bytes (at most 127) with four signed ones.
  static I dot(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  /// The same with four bytes where they lie. In assembly: g++ 12 loads them by an instruction of its own.
  static I dot_at(I sum, I codes, const int8_t* at) {
    using Word __attribute__((may_alias, aligned(1))) = int32_t;
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const Word*>(at)));
    return sum;
  }
  /// The same for weights of eight bits, given as weight + 128, for which the start makes up.
  static I dot_bytes(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  /// What sums of dot_bytes begin with: a block's start, or nothing where weights become signed.
  static I start_bytes(int32_t start) { return all(start); }

  // --- floats ---
  static F all_f(float value) { return _mm512_set1_ps(value); }
  static F load_f(const float* at) { return _mm512_loadu_ps(at); }
  static void store_f(float* at, F a) { _mm512_storeu_ps(at, a); }
  static F halves(const void* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }
  static I round(F a) { return _mm512_cvtps_epi32(a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  /// a * b + c
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// The larger (smaller); b where one of them is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
  static float total(F a) { return _mm512_reduce_add_ps(a); }
  static int32_t total(I a) { return _mm512_reduce_add_epi32(a); }
  /// Every lane's lowest byte, saturated.
  static void store_bytes(int8_t* at, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtsepi32_epi8(a));
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
