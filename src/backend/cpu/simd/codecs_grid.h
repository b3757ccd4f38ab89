// The codecs (codecs.h, which includes this) of types whose codes name points of a grid (quant/iq_grids.h): a
// word of four magnitudes is fetched for each row, which takes longer than all else that is done with it.

/// A mask for each of four numbers whose bits, the lowest of each byte, are set.
alignas(16) constexpr uint8_t kWholeBytes[16] = {0, 255};

/// Bits 0..3 as the lowest bits of four bytes.
inline I bit_a_byte(I four) {
  const I two = Lanes::bit_or(four, Lanes::shift_left(four, 7));
  return Lanes::bit_and(Lanes::bit_or(two, Lanes::shift_left(two, 14)), Lanes::all(0x01010101));
}

/// Four magnitudes, 1 to 127, as 128 + number: negative where the lowest four bits of `signs` say so.
inline I with_signs(I magnitudes, I signs) {
  const I negative = bit_a_byte(Lanes::bit_and(signs, Lanes::all(15)));
  const I over = Lanes::bit_xor(magnitudes, Lanes::all(static_cast<int32_t>(0x80808080u)));
  const I flipped = Lanes::bit_xor(over, Lanes::lookup(Lanes::table(kWholeBytes), negative));
  return Lanes::plus(flipped, negative);  // ~(128 + m) + 1 = 128 - m
}

/// The signs of four numbers out of seven bits, of which the count of ones becomes even by an eighth: of the
/// first four or the last.
inline I even_signs(I seven, bool last) {
  if (!last) return seven;
  I parity = Lanes::bit_xor(seven, Lanes::shift_right(seven, 4));
  parity = Lanes::bit_xor(parity, Lanes::shift_right(parity, 2));
  parity = Lanes::bit_xor(parity, Lanes::shift_right(parity, 1));
  const I eighth = Lanes::shift_left(Lanes::bit_and(parity, Lanes::all(1)), 3);
  return Lanes::bit_or(Lanes::shift_right(seven, 4), eighth);
}

/// Byte `index` of words from `base` on.
inline I byte_of(const Block& block, int base, int index) {
  return bits(block.word(base + index / 4), 8 * (index % 4), 255);
}
/// The first or last word of the point of eight numbers that `code` names.
template <size_t kWords>
inline I word_of_point(const std::array<uint32_t, kWords>& grid, I code, int j) {
  return Lanes::gather(grid.data() + j % 2, Lanes::shift_left(code, 1));
}

/// 2 * scale + 1
inline I odd(I scale) { return Lanes::plus(Lanes::shift_left(scale, 1), Lanes::all(1)); }

/// What the types with signs share.
template <quant::Type type, int kBlockBytes, int kHalvesOfGroup, int kMost>
struct SignedPoints : EightGroups<type, kBlockBytes, 1, kHalvesOfGroup> {
  static constexpr int kOffset = 128, kLargest = kMost;
  static constexpr bool kBytes = true, kUnpacksFirst = true;
  using EightGroups<type, kBlockBytes, 1, kHalvesOfGroup>::EightGroups;

  /// Scales in the nibbles of words from `base` on: d * (2 scale + 1) * part.
  void nibble_scales(int base, float part) {
    const F d = Lanes::mul(this->half(0), Lanes::all_f(part));
    for (int i = 0; i < 8 * kHalvesOfGroup; ++i)
      this->scales[i] = scaled(d, odd(bits(this->word(base + i / 8), 4 * (i % 8), 15)));
  }
  /// Scales in the highest bits of words base, base + step ...
  void top_scales(int base, int step, float part) {
    const F d = Lanes::mul(this->half(0), Lanes::all_f(part));
    for (int g = 0; g < 8; ++g)
      this->scales[g] = scaled(d, odd(Lanes::shift_right(this->word(base + step * g), 28)));
  }
};

struct IQ2_XXS : SignedPoints<quant::Type::IQ2_XXS, 66, 1, 43> {
  IQ2_XXS(const uint8_t* at, int lane) : SignedPoints(at, lane) { top_scales(1, 2, 0.125f); }
  I code(int group, int j) const {
    const I signs = bits(word(2 * group + 1), 7 * (j / 2), 127);
    return with_signs(word_of_point(quant::kIq2Xxs, byte_of(*this, 2 * group, j / 2), j),
                      even_signs(signs, j % 2 == 1));
  }
};

struct IQ2_XS : SignedPoints<quant::Type::IQ2_XS, 74, 2, 43> {
  IQ2_XS(const uint8_t* at, int lane) : SignedPoints(at, lane) { nibble_scales(16, 0.125f); }
  I code(int group, int j) const {
    const I two = word(2 * group + j / 4);
    const int from = 16 * (j / 2 % 2);
    return with_signs(word_of_point(quant::kIq2Xs, bits(two, from, 511), j),
                      even_signs(bits(two, from + 9, 127), j % 2 == 1));
  }
};

struct IQ2_S : SignedPoints<quant::Type::IQ2_S, 82, 2, 43> {
  IQ2_S(const uint8_t* at, int lane) : SignedPoints(at, lane) { nibble_scales(18, 0.125f); }
  I code(int group, int j) const {
    const I more = bits(word(16 + group / 4), 8 * (group % 4) + 2 * (j / 2), 3);
    const I point = Lanes::bit_or(byte_of(*this, group, j / 2), Lanes::shift_left(more, 8));
    return with_signs(word_of_point(quant::kIq2S, point, j), shifted(word(8 + group), 4 * j));
  }
};

struct IQ3_XXS : SignedPoints<quant::Type::IQ3_XXS, 98, 1, 62> {
  IQ3_XXS(const uint8_t* at, int lane) : SignedPoints(at, lane) { top_scales(16, 1, 0.25f); }
  I code(int group, int j) const {
    const I signs = bits(word(16 + group), 7 * (j / 2), 127);
    const I magnitudes = Lanes::gather(quant::kIq3Xxs.data(), byte_of(*this, 2 * group, j));
    return with_signs(magnitudes, even_signs(signs, j % 2 == 1));
  }
};

struct IQ3_S : SignedPoints<quant::Type::IQ3_S, 110, 1, 15> {
  IQ3_S(const uint8_t* at, int lane) : SignedPoints(at, lane) { nibble_scales(26, 1.0f); }
  I code(int group, int j) const {
    const I ninth = bits(word(16 + group / 4), 8 * (group % 4) + j, 1);
    const I point = Lanes::bit_or(byte_of(*this, 2 * group, j), Lanes::shift_left(ninth, 8));
    return with_signs(Lanes::gather(quant::kIq3S.data(), point), shifted(word(18 + group), 4 * j));
  }
};

/// Four numbers of IQ1 as 128 + eighths: all an eighth up, or down where the lowest bit of `down` is set.
inline I shifted_eighths(I point, I down) {
  const I all_down = Lanes::shift_right_signed(Lanes::shift_left(down, 31), 31);
  const I up_or_down = Lanes::bit_xor(
      Lanes::all(0x01010101), Lanes::bit_and(all_down, Lanes::all(static_cast<int32_t>(0xFFFFFFFEu))));
  return Lanes::plus(point, up_or_down);  // 0x01010101 or -0x01010101: bytes are 120 to 136, nothing carries
}

struct IQ1_S : EightGroups<quant::Type::IQ1_S, 50, 1, 1> {
  static constexpr int kOffset = 128, kLargest = 9;
  static constexpr bool kBytes = true, kUnpacksFirst = true;
  IQ1_S(const uint8_t* at, int lane) : EightGroups(at, lane) {
    const F d = Lanes::mul(half(0), Lanes::all_f(0.125f));
    for (int g = 0; g < 8; ++g) scales[g] = scaled(d, odd(bits(more(g), 12, 7)));
  }
  /// Sixteen bits a group: more of its four codes, the scale, the shift.
  I more(int group) const { return Lanes::shift_right(word(8 + group / 2), 16 * (group % 2)); }
  I code(int group, int j) const {
    const I upper = Lanes::shift_left(bits(more(group), 3 * (j / 2), 7), 8);
    const I point = Lanes::bit_or(byte_of(*this, group, j / 2), upper);
    return shifted_eighths(word_of_point(quant::kIq1, point, j), Lanes::shift_right(more(group), 15));
  }
};

/// A binary16 in the lowest bits as a float: 2^112 times what its bits, moved up, mean. Infinities and NaN go
/// on as numbers.
inline F half_bits(I half) {
  const I magnitude = Lanes::shift_left(Lanes::bit_and(half, Lanes::all(0x7FFF)), 13);
  const I sign = Lanes::shift_left(Lanes::bit_and(half, Lanes::all(0x8000)), 16);
  return Lanes::mul(Lanes::as_float(Lanes::bit_or(magnitude, sign)), Lanes::all_f(0x1p112f));
}

struct IQ1_M : EightGroups<quant::Type::IQ1_M, 56, 0, 2> {
  static constexpr int kOffset = 128, kLargest = 9;
  static constexpr bool kBytes = true, kUnpacksFirst = true;
  IQ1_M(const uint8_t* at, int lane) : EightGroups(at, lane) {
    I d = Lanes::zero();  // the upper four bits of four times sixteen
    for (int i = 0; i < 4; ++i)
      d = Lanes::bit_or(d, Lanes::shift_left(bits(word(12 + i / 2), 12 + 16 * (i % 2), 15), 4 * i));
    const F eighth = Lanes::mul(half_bits(d), Lanes::all_f(0.125f));
    for (int i = 0; i < 16; ++i)
      scales[i] = scaled(eighth, odd(bits(word(12 + i / 8), 16 * (i / 4 % 2) + 3 * (i % 4), 7)));
  }
  I code(int group, int j) const {
    const I more = bits(word(8 + group / 2), 16 * (group % 2) + 4 * (j / 2), 15);
    const I upper = Lanes::shift_left(Lanes::bit_and(more, Lanes::all(7)), 8);
    const I point = Lanes::bit_or(byte_of(*this, group, j / 2), upper);
    return shifted_eighths(word_of_point(quant::kIq1, point, j), Lanes::shift_right(more, 3));
  }
};

/// Two groups of 32 columns, each of two runs of 16 with a scale of their own.
struct NVFP4 : Block {
  static constexpr quant::Type kType = quant::Type::NVFP4;
  static constexpr int kGroups = 2, kHalves = 2, kPackedBytes = 36 * kPanelRows, kOffset = 128, kLargest = 12;
  static constexpr bool kMinimum = false, kBytes = true, kLargeScales = false;
  NVFP4(const uint8_t* at, int lane) : Block(at, at, lane) {}
  I code(int group, int j) const {
    const I of_run = word(1 + 2 * (2 * group + j / 4) + j % 2);
    return Lanes::lookup(Lanes::table(kDoubledE2M1Bytes), nibbles_of(of_run, 4 * (j / 2 % 2)));
  }
  /// Half of an E4M3 float: its bits, moved up to a float's, times a power of two; all ones count as nothing.
  /// Subnormal ones are twice that less 2^-7: as subnormal floats processors took ten times as long for a
  /// row.
  F scale(int group, int half) const {
    const I byte = bits(word(0), 8 * (2 * group + half), 255);
    const I is_number =
        Lanes::shift_right(Lanes::plus(Lanes::bit_xor(byte, Lanes::all(127)), Lanes::all(255)), 8);
    const I kept = Lanes::bit_and(
        byte,
        Lanes::bit_and(Lanes::shift_right_signed(Lanes::shift_left(is_number, 31), 31), Lanes::all(127)));
    const I subnormal = Lanes::shift_right_signed(Lanes::plus(kept, Lanes::all(-8)), 31);
    const F number = Lanes::as_float(Lanes::plus(Lanes::shift_left(kept, 20), Lanes::all(119 << 23)));
    const F times =
        Lanes::as_float(Lanes::plus(Lanes::all(0x3F800000), Lanes::bit_and(subnormal, Lanes::all(1 << 23))));
    const F more = Lanes::as_float(Lanes::bit_and(subnormal, Lanes::all(static_cast<int32_t>(0xBC000000u))));
    return Lanes::fma(number, times, more);
  }
};
