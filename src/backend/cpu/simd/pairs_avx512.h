// Two rows of 16-bit numbers side by side. Include it inside an anonymous namespace only, after immintrin.h.

/// For every lane the number of one row and that of the next, from 16 columns of both: the lower or the
/// upper ones.
inline __m512i pairs_of(__m512i row, __m512i next, bool upper) {
  const __m512i lower = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i from = upper ? _mm512_add_epi16(lower, _mm512_set1_epi16(16)) : lower;
  return _mm512_permutex2var_epi16(row, from, next);
}
