// How each packed block (packed.h) unpacks in SIMD: one struct a type, the same for every tier. Include it
// inside an anonymous namespace only, after a tier's Lanes.
//
// A codec stands on one block of a panel, at the lanes `first` and following. For each group of 32 columns it
// gives
//   code(group, j)         the unsigned codes of columns 4j .. 4j + 3, four bytes a lane
//   scale(group, half)     floats; kHalves = 2: the group's two halves of 16 columns have scales of their own
//   minimum(group, half)   if kMinimum: what is added to every number
// number = scale * (code - kOffset) + minimum. kBytes: codes are bytes (kOffset 128) that exceed seven bits.
// kLargest: of the codes, or with kBytes of the magnitudes of code - kOffset. kLargeScales: they may exceed
// 2^103, so that 2^24 of them are no float.

using I = Lanes::I;
using F = Lanes::F;

constexpr int kWordBytes = 4 * kPanelRows, kHalfBytes = 2 * kPanelRows;

/// `a` shifted right by `by`, or left by -by.
inline I shifted(I a, int by) {
  return by > 0 ? Lanes::shift_right(a, by) : by < 0 ? Lanes::shift_left(a, -by) : a;
}
inline I bits(I a, int from, int32_t mask) { return Lanes::bit_and(shifted(a, from), Lanes::all(mask)); }
/// The four nibbles that begin at bit `from` (0 or 4) of each byte.
inline I nibbles_of(I a, int from) { return bits(a, from, 0x0F0F0F0F); }

/// Where a codec reads: the block's words and 16-bit halves, of its lanes.
struct Block {
  /// Whether products unpack a block's codes to memory first, whatever the rows: for codes that take so much
  /// longer to unpack than to multiply that bodies of their own for every number of rows are not worth their
  /// space.
  static constexpr bool kUnpacksFirst = false;
  const uint8_t *words, *halves;
  int first;

  Block(const uint8_t* words_at, const uint8_t* halves_at, int lane)
      : words(words_at), halves(halves_at), first(lane) {}
  I word(int index) const { return Lanes::load(words + index * kWordBytes + 4 * first); }
  /// The index-th 16 bits a row.
  const uint8_t* half_at(int index) const { return halves + index * kHalfBytes + 2 * first; }
  F half(int index) const { return Lanes::halves(half_at(index)); }
  /// 32 nibble codes from word `base` on: columns 4j .. of the first 16 low, of the last 16 high.
  I nibbles(int base, int j) const {
    return j < 4 ? nibbles_of(word(base + j), 0) : nibbles_of(word(base + j - 4), 4);
  }
};

/// What 32-column types share: one group a block, the scales behind its words.
template <quant::Type type, int kBlockBytes, int kWords>
struct OneGroup : Block {
  static constexpr quant::Type kType = type;
  static constexpr int kGroups = 1, kHalves = 1, kPackedBytes = kBlockBytes * kPanelRows;
  static constexpr bool kMinimum = false, kBytes = false, kLargeScales = false;
  OneGroup(const uint8_t* at, int lane) : Block{at, at + kWords * kWordBytes, lane} {}
};

struct Q4_0 : OneGroup<quant::Type::Q4_0, 18, 4> {
  static constexpr int kOffset = 8, kLargest = 15;
  using OneGroup::OneGroup;
  I code(int, int j) const { return nibbles(0, j); }
  F scale(int, int) const { return half(0); }
};

struct Q4_1 : OneGroup<quant::Type::Q4_1, 20, 4> {
  static constexpr int kOffset = 0, kLargest = 15;
  static constexpr bool kMinimum = true;
  using OneGroup::OneGroup;
  I code(int, int j) const { return nibbles(0, j); }
  F scale(int, int) const { return half(0); }
  F minimum(int, int) const { return half(1); }
};

/// The fifth bit of Q5_0 and Q5_1 stands in word 4, spread.
inline I fifth_bits(I spread, int j) { return bits(spread, j - 4, 0x10101010); }

struct Q5_0 : OneGroup<quant::Type::Q5_0, 22, 5> {
  static constexpr int kOffset = 16, kLargest = 31;
  using OneGroup::OneGroup;
  I code(int, int j) const { return Lanes::bit_or(nibbles(0, j), fifth_bits(word(4), j)); }
  F scale(int, int) const { return half(0); }
};

struct Q5_1 : OneGroup<quant::Type::Q5_1, 24, 5> {
  static constexpr int kOffset = 0, kLargest = 31;
  static constexpr bool kMinimum = true;
  using OneGroup::OneGroup;
  I code(int, int j) const { return Lanes::bit_or(nibbles(0, j), fifth_bits(word(4), j)); }
  F scale(int, int) const { return half(0); }
  F minimum(int, int) const { return half(1); }
};

struct Q8_0 : OneGroup<quant::Type::Q8_0, 34, 8> {
  static constexpr int kOffset = 128, kLargest = 128;
  static constexpr bool kBytes = true;
  using OneGroup::OneGroup;
  I code(int, int j) const { return Lanes::bit_xor(word(j), Lanes::all(static_cast<int32_t>(0x80808080u))); }
  F scale(int, int) const { return half(0); }
};

// The value tables (quant/codecs.h) as bytes + 128.
alignas(16) constexpr uint8_t kNonlinear4Bytes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                      129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kDoubledE2M1Bytes[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                       128, 127, 126, 125, 124, 122, 120, 116};

struct IQ4_NL : OneGroup<quant::Type::IQ4_NL, 18, 4> {
  static constexpr int kOffset = 128, kLargest = 127;
  static constexpr bool kBytes = true;
  using OneGroup::OneGroup;
  I code(int, int j) const { return Lanes::lookup(Lanes::table(kNonlinear4Bytes), nibbles(0, j)); }
  F scale(int, int) const { return half(0); }
};

struct MXFP4 : OneGroup<quant::Type::MXFP4, 17, 4> {
  static constexpr int kOffset = 128, kLargest = 12;
  static constexpr bool kBytes = true, kLargeScales = true;
  using OneGroup::OneGroup;
  I code(int, int j) const { return Lanes::lookup(Lanes::table(kDoubledE2M1Bytes), nibbles(0, j)); }
  /// Half of 2^(e - 127): e - 1 as a float's exponent. Times two powers, so that e = 0 and 1, whose halves
  /// are subnormal, need no case: (e + 63) is an exponent of a normal float, and 2^-64 is exact.
  F scale(int, int) const {
    const I e = Lanes::bytes(halves + first);
    const I small = Lanes::shift_right(e, 1);                              // 2^small * 2^(e - small) = 2^e
    const I rest = Lanes::plus(e, Lanes::bit_xor(small, Lanes::all(-1)));  // e - small - 1
    const auto power = [](I exponent, int bias) {
      return Lanes::as_float(Lanes::shift_left(Lanes::plus(exponent, Lanes::all(bias)), 23));
    };
    return Lanes::mul(power(small, 127 - 64), power(rest, 127 - 63));
  }
};

/// What the types with blocks of 256 columns share: k16 halves before the words, scales that are unpacked
/// once a block.
template <quant::Type type, int kBlockBytes, int k16, int kHalvesOfGroup>
struct EightGroups : Block {
  static constexpr quant::Type kType = type;
  static constexpr int kGroups = 8, kHalves = kHalvesOfGroup, kPackedBytes = kBlockBytes * kPanelRows;
  static constexpr bool kMinimum = false, kBytes = false, kLargeScales = false;
  F scales[kGroups * kHalves];
  EightGroups(const uint8_t* at, int lane) : Block{at + k16 * kHalfBytes, at, lane} {}
  F scale(int group, int half) const { return scales[group * kHalves + half]; }
};

/// The byte at bits [from, from + 8), sign and all.
inline I signed_byte(I a, int from) { return Lanes::shift_right_signed(Lanes::shift_left(a, 24 - from), 24); }
inline F scaled(F d, I scale) { return Lanes::mul(d, Lanes::to_float(scale)); }

/// Q4_K and Q5_K: eight 6-bit scales and minima in words 0..2, as quant/k_quants_mid.cc has them.
template <quant::Type type, int kBlockBytes>
struct ScalesAndMinima : EightGroups<type, kBlockBytes, 2, 1> {
  static constexpr int kOffset = 0;
  static constexpr bool kMinimum = true;
  F minima[8];
  ScalesAndMinima(const uint8_t* at, int lane) : EightGroups<type, kBlockBytes, 2, 1>(at, lane) {
    const I low_scales = this->word(0), low_minima = this->word(1), last = this->word(2);
    const F d = this->half(0), dmin = Lanes::sub(Lanes::all_f(0), this->half(1));
    for (int g = 0; g < 4; ++g) {
      const int at_byte = 8 * g;
      const auto upper = [&](I a) {
        return Lanes::bit_and(Lanes::shift_right(a, at_byte + 2), Lanes::all(0x30));
      };
      this->scales[g] = scaled(d, bits(low_scales, at_byte, 63));
      minima[g] = scaled(dmin, bits(low_minima, at_byte, 63));
      this->scales[g + 4] = scaled(d, Lanes::bit_or(bits(last, at_byte, 15), upper(low_scales)));
      minima[g + 4] = scaled(dmin, Lanes::bit_or(bits(last, at_byte + 4, 15), upper(low_minima)));
    }
  }
  F minimum(int group, int) const { return minima[group]; }
};

struct Q4_K : ScalesAndMinima<quant::Type::Q4_K, 144> {
  static constexpr int kLargest = 15;
  using ScalesAndMinima::ScalesAndMinima;
  I code(int group, int j) const { return nibbles_of(word(3 + 8 * (group / 2) + j), 4 * (group % 2)); }
};

struct Q5_K : ScalesAndMinima<quant::Type::Q5_K, 176> {
  static constexpr int kLargest = 31;
  using ScalesAndMinima::ScalesAndMinima;
  I code(int group, int j) const {
    const I low = nibbles_of(word(11 + 8 * (group / 2) + j), 4 * (group % 2));
    return Lanes::bit_or(low, bits(word(3 + j), group - 4, 0x10101010));
  }
};

struct Q6_K : EightGroups<quant::Type::Q6_K, 210, 1, 2> {
  static constexpr int kOffset = 32, kLargest = 63;
  Q6_K(const uint8_t* at, int lane) : EightGroups(at, lane) {
    const F d = half(0);
    for (int i = 0; i < 16; ++i) scales[i] = scaled(d, signed_byte(word(i / 4), 8 * (i % 4)));
  }
  I code(int group, int j) const {
    const int part = group / 4, k = group % 4;
    const I low = nibbles_of(word(4 + 24 * part + 8 * (k % 2) + j), 4 * (k / 2));
    return Lanes::bit_or(low, bits(word(20 + 24 * part + j), 2 * k - 4, 0x30303030));
  }
};

/// The two low bits of a number of Q2_K and Q3_K, whose codes begin at word `base`.
inline I bit_pairs(const Block& block, int base, int group, int j) {
  return bits(block.word(base + 8 * (group / 4) + j), 2 * (group % 4), 0x03030303);
}

struct Q2_K : EightGroups<quant::Type::Q2_K, 84, 2, 2> {
  static constexpr int kOffset = 0, kLargest = 3;
  static constexpr bool kMinimum = true;
  F minima[16];
  Q2_K(const uint8_t* at, int lane) : EightGroups(at, lane) {
    const F d = half(0), dmin = Lanes::sub(Lanes::all_f(0), half(1));
    for (int i = 0; i < 16; ++i) {
      scales[i] = scaled(d, bits(word(i / 4), 8 * (i % 4), 15));
      minima[i] = scaled(dmin, bits(word(i / 4), 8 * (i % 4) + 4, 15));
    }
  }
  I code(int group, int j) const { return bit_pairs(*this, 4, group, j); }
  F minimum(int group, int half) const { return minima[2 * group + half]; }
};

struct Q3_K : EightGroups<quant::Type::Q3_K, 110, 1, 2> {
  static constexpr int kOffset = 4, kLargest = 7;
  Q3_K(const uint8_t* at, int lane) : EightGroups(at, lane) {
    const F d = half(0);
    const I third = word(2);
    for (int i = 0; i < 16; ++i) {  // a nibble of words 0, 1 and two bits of word 2
      const I low = bits(word(i % 8 / 4), 8 * (i % 4) + 4 * (i / 8), 15);
      const I high = Lanes::shift_left(bits(third, 8 * (i % 4) + 2 * (i / 4), 3), 4);
      scales[i] = scaled(d, Lanes::plus(Lanes::bit_or(low, high), Lanes::all(-32)));
    }
  }
  I code(int group, int j) const {
    return Lanes::bit_or(bit_pairs(*this, 11, group, j), bits(word(3 + j), group - 2, 0x04040404));
  }
};

struct IQ4_XS : EightGroups<quant::Type::IQ4_XS, 136, 2, 1> {
  static constexpr int kOffset = 128, kLargest = 127;
  static constexpr bool kBytes = true;
  IQ4_XS(const uint8_t* at, int lane) : EightGroups(at, lane) {
    const F d = half(0);
    const I upper = Lanes::words(half_at(1)), lower = word(0);
    for (int g = 0; g < 8; ++g) {
      const I six = Lanes::bit_or(bits(lower, 4 * g, 15), Lanes::shift_left(bits(upper, 2 * g, 3), 4));
      scales[g] = scaled(d, Lanes::plus(six, Lanes::all(-32)));
    }
  }
  I code(int group, int j) const {
    return Lanes::lookup(Lanes::table(kNonlinear4Bytes), nibbles(1 + 4 * group, j));
  }
};

#include "backend/cpu/simd/codecs_grid.h"
