// 2^x where bfloat16 keeps of it what it can. Include it inside an anonymous namespace only, after
// immintrin.h.

/// 2^x for x <= 0, within 2^-18: a polynomial for the fraction (least squares, weighted to be as good
/// everywhere), what bfloat16 keeps of it is 2^-9.
inline __m512 power_of_two(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.0135341676f);
  for (const float coefficient : {0.0520114612f, 0.241442757f, 0.693003835f, 1.0f})
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(coefficient));
  return _mm512_scalef_ps(p, x);
}
