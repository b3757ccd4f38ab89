// The bodies of small.h, which all tiers share. Include it inside an anonymous namespace only, after a tier's
// Lanes, exp.h and `to_f16`; it ends with the tier's table.

/// out[i] = f(x[i]) by vectors; the last, partial one is filled up with zeroes.
template <typename Function>
inline void map(const float* x, int64_t count, float* out, Function f) {
  using L = Lanes;
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth) L::store_f(out + i, f(L::load_f(x + i)));
  if (i == count) return;
  float rest[L::kWidth] = {};
  for (int64_t j = i; j < count; ++j) rest[j - i] = x[j];
  L::store_f(rest, f(L::load_f(rest)));
  for (int64_t j = i; j < count; ++j) out[j] = rest[j - i];
}

void rms_norm(const float* x, const float* weight, int64_t count, float epsilon, float* out) {
  using L = Lanes;
  L::F sums[2] = {L::all_f(0), L::all_f(0)};
  int64_t i = 0;
  for (; i + 2 * L::kWidth <= count; i += 2 * L::kWidth) {
    for (int n = 0; n < 2; ++n) {
      const L::F v = L::load_f(x + i + n * L::kWidth);
      sums[n] = L::fma(v, v, sums[n]);
    }
  }
  float sum = L::total(L::add(sums[0], sums[1]));
  for (int64_t j = i; j < count; ++j) sum += x[j] * x[j];
  const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(count) + epsilon);
  for (int64_t j = 0; j < count; ++j) out[j] = x[j] * inverse * weight[j];
}

/// The angle less its nearest multiple k of pi / 2, then Taylor polynomials in double: below pi / 4 the first
/// term left out is 2^-45 and less. pi / 2 is subtracted in two parts, the first of 33 bits, so that k times
/// it is exact.
void angles(double position, const double* frequencies, int64_t count, float* cosine, float* sine) {
  constexpr double kRound = 0x1.8p52;  // added, it leaves the nearest integer in a double's low bits
  for (int64_t i = 0; i < count; ++i) {
    const double angle = position * frequencies[i];
    const double shifted = angle * 0.63661977236758134308 + kRound;
    int64_t quarter;
    __builtin_memcpy(&quarter, &shifted, sizeof quarter);
    const double k = shifted - kRound;
    const double r = (angle - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11;
    const double z = r * r;
    const double s =
        r * (1 + z * (-1.0 / 6 +
                      z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800))))));
    const double c =
        1 + z * (-0.5 + z * (1.0 / 24 +
                             z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
    const double sine_part = (quarter & 1) != 0 ? c : s, cosine_part = (quarter & 1) != 0 ? s : c;
    sine[i] = static_cast<float>((quarter & 2) != 0 ? -sine_part : sine_part);
    cosine[i] = static_cast<float>(((quarter + 1) & 2) != 0 ? -cosine_part : cosine_part);
  }
}

void rotate_neighbours(const float* x, const float* cosine, const float* sine, int64_t pairs, float* out) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[2 * i] = a * cosine[i] - b * sine[i];
    out[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

void rotate_halves(const float* x, const float* cosine, const float* sine, int64_t pairs, float* out) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[i], b = x[i + pairs];
    out[i] = a * cosine[i] - b * sine[i];
    out[i + pairs] = a * sine[i] + b * cosine[i];
  }
}

void sigmoid(const float* x, int64_t count, float* out) {
  using L = Lanes;
  map(x, count, out,
      [](L::F v) { return L::div(L::all_f(1), L::add(L::all_f(1), exp_of(L::sub(L::all_f(0), v)))); });
}

void softmax(const float* x, int64_t count, float* out) {
  using L = Lanes;
  float largest = x[0];
  for (int64_t i = 1; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  map(x, count, out, [largest](L::F v) { return exp_of(L::sub(v, L::all_f(largest))); });
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += out[i];
  for (int64_t i = 0; i < count; ++i) out[i] /= sum;
}

void add_scaled(const float* x, float factor, int64_t count, float* out) {
  using L = Lanes;
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth) {
    L::store_f(out + i, L::fma(L::load_f(x + i), L::all_f(factor), L::load_f(out + i)));
  }
  for (; i < count; ++i) out[i] += x[i] * factor;
}

void exp_all(const float* x, int64_t count, float* out) {
  map(x, count, out, [](Lanes::F v) { return exp_of(v); });
}

void swiglu(const float* gate, const float* up, const SwigluForm& form, int64_t count, float* out) {
  using L = Lanes;
  // Of min and max, NaN is the second's.
  const L::F limit = L::all_f(form.limit), least = L::all_f(-form.limit);
  const auto both = [&](L::F a, L::F b) {
    const L::F g = L::min(limit, a), u = L::min(limit, L::max(least, b));
    const L::F silu = L::div(g, L::add(L::all_f(1), exp_of(L::mul(L::all_f(-form.alpha), g))));
    return L::mul(silu, L::add(u, L::all_f(form.shift)));
  };
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth)
    L::store_f(out + i, both(L::load_f(gate + i), L::load_f(up + i)));
  if (i == count) return;
  float gates[L::kWidth] = {}, ups[L::kWidth] = {};
  for (int64_t j = i; j < count; ++j) gates[j - i] = gate[j], ups[j - i] = up[j];
  L::store_f(gates, both(L::load_f(gates), L::load_f(ups)));
  for (int64_t j = i; j < count; ++j) out[j] = gates[j - i];
}

#include "backend/cpu/simd/state_body.h"

constexpr SmallKernels kTable{rms_norm,   angles,        rotate_neighbours, rotate_halves, sigmoid, softmax,
                              add_scaled, to_f16,        exp_all,           swiglu,        dot,     softplus,
                              delta_rule, tap_after_tap, convolve};
