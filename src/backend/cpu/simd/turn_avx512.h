// Rows of 32-bit words made columns, in registers. Include it inside an anonymous namespace only, after
// immintrin.h.

/// Four vectors of 32-bit words, lane = row, to the four words of every row side by side: the rows 4k + i in
/// quarter k of out[i].
inline __attribute__((always_inline)) void turn_words(const __m512i* in, __m512i* out) {
  const __m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i c = _mm512_unpacklo_epi32(in[2], in[3]), d = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}

/// 16 vectors of 32-bit words, transposed: word i of vector r becomes word r of vector i.
inline __attribute__((always_inline)) void turn(__m512i* v) {
  __m512i quarters[16];
  for (int r = 0; r < 16; r += 4) turn_words(v + r, quarters + r);
  // quarters[4a + i], quarter k: words of the rows 4a .. 4a + 3 at 4k + i.
  for (int i = 0; i < 4; ++i) {
    const __m512i a = quarters[i], b = quarters[4 + i], c = quarters[8 + i], d = quarters[12 + i];
    const __m512i ab_low = _mm512_shuffle_i32x4(a, b, 0x88), ab_high = _mm512_shuffle_i32x4(a, b, 0xDD);
    const __m512i cd_low = _mm512_shuffle_i32x4(c, d, 0x88), cd_high = _mm512_shuffle_i32x4(c, d, 0xDD);
    v[i] = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88);
    v[8 + i] = _mm512_shuffle_i32x4(ab_low, cd_low, 0xDD);
    v[4 + i] = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88);
    v[12 + i] = _mm512_shuffle_i32x4(ab_high, cd_high, 0xDD);
  }
}
