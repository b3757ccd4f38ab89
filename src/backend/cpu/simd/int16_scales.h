// What whole numbers of 16 bits stand for: a row of them times its scale. Include it inside an anonymous
// namespace only, after a tier's Lanes and Int16.

constexpr float kNorm = 46000;           // kNorm * kNorm < 2^31, with room for rounding
constexpr float kLargestNumber = 32767;  // of 16 bits
constexpr float kLargestSum = 2.1e9f;    // of 32 bits, with room for rounding 256 weights

/// What a row's whole numbers are worth, a lane a row: of its sum of squares and its largest magnitude.
inline Lanes::F scales_of(Lanes::F squares, Lanes::F largest) {
  const Lanes::F of_numbers = Lanes::div(largest, Lanes::all_f(kLargestNumber));
  return Lanes::max(of_numbers, Lanes::div(Int16::sqrt(squares), Lanes::all_f(kNorm)));
}

/// Numbers are multiplied with it; a scale of less than a normal float's inverse counts as nothing.
inline float one_over(float scale) { return scale > 1e-36f ? 1 / scale : 0; }
inline Lanes::F inverse_of(float scale) { return Lanes::all_f(one_over(scale)); }
