// A group of 32 columns of a panel to bf16, scale and all: the body that the tiers with products of bf16
// share. Weights are unpacked row by row, so that the few numbers which a code of four bits can mean under
// one scale are computed once for 32 columns and looked up, which takes half the instructions of multiplying
// every code. Include it inside an anonymous namespace only, after lanes_avx512.h and codecs.h.

#include "backend/cpu/simd/turn_avx512.h"
#include "backend/cpu/simd/unroll.h"

/// Types whose numbers are looked up: the most that a code can be, 15 or 31; 0: codes are multiplied.
template <typename Codec>
constexpr int kMostCode = 0;
template <>
constexpr int kMostCode<Q4_0> = 15;
template <>
constexpr int kMostCode<Q4_1> = 15;
template <>
constexpr int kMostCode<Q4_K> = 15;
template <>
constexpr int kMostCode<Q2_K> = 15;
template <>
constexpr int kMostCode<Q3_K> = 15;
template <>
constexpr int kMostCode<Q5_0> = 31;
template <>
constexpr int kMostCode<Q5_1> = 31;
template <>
constexpr int kMostCode<Q5_K> = 31;

/// Types of one group whose 32 codes are the nibbles of 16 bytes: low ones first.
template <typename Codec>
constexpr bool kNibbles = std::is_same_v<Codec, Q4_0> || std::is_same_v<Codec, Q4_1>;

inline I two_to_bf16(F high, F low) { return reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low)); }

/// Calls f(0) .. f(kPanelRows - 1) with constants.
template <typename Function>
SLUICE_INLINE inline void each_row(Function f) {
  call_each(f, std::make_integer_sequence<int, kPanelRows>{});
}

/// A group of 32 columns of a block, row by row: 16 bytes a row and half, and by rows too the scale of each
/// half and what its code 0 means. Where kNibbles there is only the first half, of bytes as the file has
/// them.
struct alignas(64) GroupOfRows {
  uint8_t bytes[2][kPanelRows * 16];
  float scale[2][kPanelRows], start[2][kPanelRows];

  static int at(int row) { return row % 4 * 64 + row / 4 * 16; }
  I quarters(int half, int row) const {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes[half] + at(row))));
  }
  /// The first half's bytes in quarters 0 and 2, the second's in 1 and 3.
  I halves(int row) const {
    const auto* second = reinterpret_cast<const __m128i*>(bytes[1] + at(row));
    return _mm512_mask_broadcast_i32x4(quarters(0, row), 0xF0F0, _mm_load_si128(second));
  }
  /// Numbers of the 16 codes from `first` on under a half's scale. Without minima the offset is taken off the
  /// codes, which is exact and loads one number less.
  template <typename Codec>
  F numbers(int first, int half, int row) const {
    const F codes = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const F by = Lanes::all_f(scale[half][row]);
    if constexpr (Codec::kMinimum) {
      return Lanes::fma(Lanes::add(codes, Lanes::all_f(static_cast<float>(first))), by,
                        Lanes::all_f(start[half][row]));
    } else {
      return Lanes::mul(Lanes::add(codes, Lanes::all_f(static_cast<float>(first - Codec::kOffset))), by);
    }
  }
};

/// A damaged file's NaN as one whose lower bits are clear: rounding (rounded_floats) must not carry out of
/// it.
inline F plain_nan(F a) {
  return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q),
                            Lanes::as_float(Lanes::all(0x7FC00000)));
}

template <typename Codec>
SLUICE_INLINE inline void read_group(const Codec& codec, int group, GroupOfRows& out) {
  for (int half = 0; half < 2; ++half) {
    if (half == 0 || !kNibbles<Codec>) {
      I words[4], transposed[4];
      for (int j = 0; j < 4; ++j) {
        if constexpr (kNibbles<Codec>) {
          words[j] = codec.word(j);
        } else {
          words[j] = codec.code(group, 4 * half + j);
        }
      }
      turn_words(words, transposed);
      for (int i = 0; i < 4; ++i) _mm512_store_si512(out.bytes[half] + i * 64, transposed[i]);
    }
    if (half == 1 && Codec::kHalves == 1) break;
    const F scale = codec.scale(group, half);
    F start = Lanes::mul(scale, Lanes::all_f(-static_cast<float>(Codec::kOffset)));
    if constexpr (Codec::kMinimum) start = Lanes::add(start, codec.minimum(group, half));
    Lanes::store_f(out.scale[half], plain_nan(scale));
    Lanes::store_f(out.start[half], plain_nan(start));
  }
}

// A row's 32 numbers are written with the even columns first, then the odd ones: 16-bit words shifted into
// place come in that order. Activations have it too (round_group).

/// The upper halves of floats are bf16 numbers: 0x8000 more, and what is cut off was rounded to nearest (ties
/// away from zero).
inline I rounded_floats(F a) { return Lanes::plus(reinterpret_cast<I>(a), Lanes::all(0x8000)); }

/// Bits [bit, bit + 8), [16 + bit ..), [32 + bit ..), [48 + bit ..) of eight bytes, as a multishift is told.
constexpr long long words_from(long long bit) {
  long long all = 0;
  for (const long long word : {0, 16, 32, 48}) all |= ((word + bit) & 63) << word;
  return all;
}

/// Codes of four bits under one scale, looked up in floats: of the 32 words there the odd ones are what the
/// codes 0 to 15 mean. A lookup minds the lowest five bits of a word: here a code, and a 1 below it.
template <typename Codec, typename Before>
SLUICE_INLINE inline void look_up_in_floats(const GroupOfRows& group, uint16_t* out, Before before) {
  // Quarter by quarter (last one first): the bit below a code, in even bytes, then in odd ones.
  constexpr int kOther = kNibbles<Codec> ? 4 : 0;  // a second nibble of each byte, or the second half
  const I bits =
      _mm512_set_epi64(words_from(7 + kOther), words_from(7 + kOther), words_from(7), words_from(7),
                       words_from(kOther - 1), words_from(kOther - 1), words_from(-1), words_from(-1));
  const I odd = _mm512_set1_epi16(1);
  each_row([&](auto row) {
    before(row);
    const I bytes = kNibbles<Codec> ? group.quarters(0, row) : group.halves(row);
    const I index = Lanes::bit_or(_mm512_multishift_epi64_epi8(bits, bytes), odd);
    _mm512_storeu_si512(
        out + row * kQuantColumns,
        _mm512_permutexvar_epi16(index, rounded_floats(group.template numbers<Codec>(0, 0, row))));
  });
}

/// The same where a group has two scales or 32 codes: in a table of bf16, of a word each.
template <typename Codec, typename Before>
SLUICE_INLINE inline void look_up(const GroupOfRows& group, uint16_t* out, Before before) {
  // Quarter by quarter: the shift that brings a code to the bottom of its word.
  const I shifts = _mm512_set_epi64(0x0008000800080008, 0x0008000800080008, 0x0008000800080008,
                                    0x0008000800080008, 0, 0, 0, 0);
  const I second_half = _mm512_set_epi64(0x0010001000100010, 0x0010001000100010, 0, 0, 0x0010001000100010,
                                         0x0010001000100010, 0, 0);
  constexpr bool kTwoScales = Codec::kHalves == 2;
  each_row([&](auto row) {
    before(row);
    const F first = group.template numbers<Codec>(0, 0, row);
    const F second =
        kTwoScales ? group.template numbers<Codec>(0, 1, row) : group.template numbers<Codec>(16, 0, row);
    I index = _mm512_srlv_epi16(group.halves(row), shifts);
    if (kTwoScales) index = Lanes::bit_or(index, second_half);
    _mm512_storeu_si512(out + row * kQuantColumns,
                        _mm512_permutexvar_epi16(index, two_to_bf16(second, first)));
  });
}

/// By multiplying every code: scale * code + start, one fused step each.
template <typename Codec, typename Before>
SLUICE_INLINE inline void multiply_codes(const GroupOfRows& group, uint16_t* out, Before before) {
  const I byte = Lanes::all(255);
  each_row([&](auto row) {
    before(row);
    // Both halves' bytes as 16 words: a code of an even column and one of an odd.
    const __m128i* halves[2];
    for (int half = 0; half < 2; ++half)
      halves[half] = reinterpret_cast<const __m128i*>(group.bytes[half] + GroupOfRows::at(row));
    const I words = _mm512_cvtepu16_epi32(_mm256_loadu2_m128i(halves[1], halves[0]));
    const F even = Lanes::to_float(Lanes::bit_and(words, byte)),
            odd = Lanes::to_float(Lanes::shift_right(words, 8));
    F scale = Lanes::all_f(group.scale[0][row]), start = Lanes::all_f(group.start[0][row]);
    if (Codec::kHalves == 2) {
      scale = _mm512_mask_mov_ps(scale, 0xFF00, Lanes::all_f(group.scale[1][row]));
      start = _mm512_mask_mov_ps(start, 0xFF00, Lanes::all_f(group.start[1][row]));
    }
    _mm512_storeu_si512(out + row * kQuantColumns,
                        two_to_bf16(Lanes::fma(odd, scale, start), Lanes::fma(even, scale, start)));
  });
}

/// Asks for what lies ahead of a block of a panel.
template <typename Codec>
inline void ask_ahead(const uint8_t* block, Prefetch prefetch) {
  for (int line = 0; line < Codec::kPackedBytes; line += 64) {
    Lanes::prefetch_far(block + prefetch.far_bytes + line);
    Lanes::prefetch(block + prefetch.near_bytes + line);
  }
}

/// A group of a block's: [kPanelRows][32] bf16, of the 32 columns the even ones first. before(row) comes
/// before each row, a constant.
template <typename Codec, typename Before>
SLUICE_INLINE inline void unpack_group(const Codec& codec, int g, uint16_t* out, Before before) {
  GroupOfRows group;
  read_group(codec, g, group);
  // Rows are broadcast out of memory, for which loads have room. A compiler that knows the values would
  // shuffle them in registers, on the one unit that everything else here needs.
  asm volatile("" : "+m"(group));
  if constexpr (kMostCode<Codec> == 15 && Codec::kHalves == 1) {
    look_up_in_floats<Codec>(group, out, before);
  } else if constexpr (kMostCode<Codec> != 0) {
    look_up<Codec>(group, out, before);
  } else {
    multiply_codes<Codec>(group, out, before);
  }
}
