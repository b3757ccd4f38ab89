// e^x for vectors. Include it inside an anonymous namespace only, after a tier's Lanes.

/// e^x within 2 units in the last place (tests/backend/small_test.cc measures it): 2^n * e^r with |r| <= ln 2
/// / 2, a Taylor polynomial of degree 7 in r (error below 2^-27). Outside of [-87, 88] it stays at the value
/// there; NaN stays NaN.
inline Lanes::F exp_of(Lanes::F x) {
  using L = Lanes;
  const L::F bounded = L::max(L::all_f(-87.0f), L::min(L::all_f(88.0f), x));  // NaN is the second of both
  const L::I n = L::round(L::mul(bounded, L::all_f(1.44269504f)));
  // ln 2 in two parts, the first of few bits, so that n times it is exact.
  L::F r = L::fma(L::to_float(n), L::all_f(-0.693359375f), bounded);
  r = L::fma(L::to_float(n), L::all_f(2.12194440e-4f), r);
  L::F p = L::all_f(1.0f / 5040);
  for (const float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = L::fma(p, r, L::all_f(coefficient));
  }
  return L::mul(p, L::as_float(L::shift_left(L::plus(n, L::all(127)), 23)));
}
