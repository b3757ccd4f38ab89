// Four lanes of 32 bits in one NEON register, with dot products of bytes (ARMv8.2 DotProd), and with products
// of 2 x 8 by 8 x 2 bytes where the file is compiled for them (I8MM). Include it inside an anonymous
// namespace only (simd/matmul_*.cc), after <arm_neon.h>. What the functions do: lanes_avx512.h.

struct Lanes {
  static constexpr int kWidth = 4;
  static constexpr int kMaxTile = 4;
  static constexpr int kMaxFloatTile = 4;
  static constexpr bool kUnroll = true;
  static constexpr int kSharedFrom = 8;  // smaller blocks take as many instructions unpacked
  static constexpr int kManyFrom = 9;
  static constexpr bool kGivesNumbers = true;
  static constexpr bool kSumsAreFloats = false;
  static constexpr bool kAsksBySteps = false;
  static constexpr bool kAddsPairs = false, kPairs = false;
  using I = int32x4_t;
  using F = float32x4_t;

  static int8x16_t as_bytes(I a) { return vreinterpretq_s8_s32(a); }
  static uint32x4_t as_unsigned(I a) { return vreinterpretq_u32_s32(a); }

  static I load(const void* at) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(at))); }
  static void store(void* at, I a) { vst1q_u8(static_cast<uint8_t*>(at), vreinterpretq_u8_s32(a)); }
  static void words_of_rows(const uint8_t* at, int64_t row_bytes, I (&words)[4]) {
    I rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = load(at + i * row_bytes);
    // Words of rows 0 and 2, and of 1 and 3, in turns.
    const I low[2] = {vzip1q_s32(rows[0], rows[2]), vzip1q_s32(rows[1], rows[3])};
    const I high[2] = {vzip2q_s32(rows[0], rows[2]), vzip2q_s32(rows[1], rows[3])};
    words[0] = vzip1q_s32(low[0], low[1]);
    words[1] = vzip2q_s32(low[0], low[1]);
    words[2] = vzip1q_s32(high[0], high[1]);
    words[3] = vzip2q_s32(high[0], high[1]);
  }
  static I all(int32_t value) { return vdupq_n_s32(value); }
  static I zero() { return all(0); }
  static I shift_right(I a, int by) { return vreinterpretq_s32_u32(vshlq_u32(as_unsigned(a), all(-by))); }
  static I shift_right_signed(I a, int by) { return vshlq_s32(a, all(-by)); }
  static I shift_left(I a, int by) { return vshlq_s32(a, all(by)); }
  static I bit_and(I a, I b) { return vandq_s32(a, b); }
  static I bit_or(I a, I b) { return vorrq_s32(a, b); }
  static I bit_xor(I a, I b) { return veorq_s32(a, b); }
  static I plus(I a, I b) { return vaddq_s32(a, b); }
  static I bytes(const void* at) {
    uint32_t four;
    __builtin_memcpy(&four, at, sizeof four);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
  }
  static uint16x4_t load_words(const void* at) {
    return vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(at)));
  }
  static I words(const void* at) { return vreinterpretq_s32_u32(vmovl_u16(load_words(at))); }
  static I table(const uint8_t* entries) { return load(entries); }
  static I lookup(I table, I codes) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(as_bytes(table), vreinterpretq_u8_s32(codes)));
  }
  static I gather(const uint32_t* table, I index) {
    int32_t at[kWidth], words[kWidth];
    vst1q_s32(at, index);
    for (int i = 0; i < kWidth; ++i) words[i] = static_cast<int32_t>(table[at[i]]);
    return vld1q_s32(words);
  }

  static I four(const int8_t* at) {
    int32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return all(word);
  }
  /// Both factors are signed: codes are at most 127.
  static I dot(I sum, I codes, I x) { return vdotq_s32(sum, as_bytes(codes), as_bytes(x)); }
  /// weight + 128 without its highest bit is the weight.
  static I start_bytes(int32_t) { return zero(); }
  static I signed_bytes(I codes) { return bit_xor(codes, all(static_cast<int32_t>(0x80808080u))); }
  static I dot_bytes(I sum, I codes, I x) { return dot(sum, signed_bytes(codes), x); }

#ifdef __ARM_FEATURE_MATMUL_INT8
  /// The products of four rows of a panel with two activation rows: rows 0 and 1, and rows 2 and 3, each
  /// [row][activation].
  struct Squares {
    I low = zero(), high = zero();
  };
  /// Eight columns of four rows, from the codes of twice four.
  struct EightColumns {
    I low, high;
  };
  static EightColumns eight_columns(I first, I second) {
    return {vzip1q_s32(first, second), vzip2q_s32(first, second)};
  }
  /// Eight numbers of each of two activation rows.
  static I eight_of_two(const int8_t* a, const int8_t* b) {
    return vreinterpretq_s32_s8(vcombine_s8(vld1_s8(a), vld1_s8(b)));
  }
  static void multiply_squares(Squares& sums, const EightColumns& codes, I x) {
    sums.low = vmmlaq_s32(sums.low, as_bytes(codes.low), as_bytes(x));
    sums.high = vmmlaq_s32(sums.high, as_bytes(codes.high), as_bytes(x));
  }
  static I of_first(const Squares& sums) { return vuzp1q_s32(sums.low, sums.high); }
  static I of_second(const Squares& sums) { return vuzp2q_s32(sums.low, sums.high); }
#endif

  static F all_f(float value) { return vdupq_n_f32(value); }
  static F load_f(const float* at) { return vld1q_f32(at); }
  static void store_f(float* at, F a) { vst1q_f32(at, a); }
  static F halves(const void* at) { return vcvt_f32_f16(vreinterpret_f16_u16(load_words(at))); }
  static F to_float(I a) { return vcvtq_f32_s32(a); }
  static F as_float(I a) { return vreinterpretq_f32_s32(a); }
  static I round(F a) { return vcvtnq_s32_f32(a); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // Not FMAX and FMIN, which hand on a NaN wherever it stands.
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static float largest(F a) { return vmaxvq_f32(a); }
  static float total(F a) { return vaddvq_f32(a); }
  static int32_t total(I a) { return vaddvq_s32(a); }
  static void store_bytes(int8_t* at, I a) {
    const int16x4_t words = vqmovn_s32(a);
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
    __builtin_memcpy(at, &bytes, kWidth);
  }
  /// Into the first-level cache, and into the second. In assembly: lanes_avx512.h says why.
  static void prefetch(const void* at) {
    asm volatile("prfm pldl1keep, %0" : : "Q"(*static_cast<const char*>(at)));
  }
  static void prefetch_far(const void* at) {
    asm volatile("prfm pldl2keep, %0" : : "Q"(*static_cast<const char*>(at)));
  }
};
