// The bodies of small.h that keep states. Include it inside an anonymous namespace only, after a tier's Lanes
// and exp.h.

float dot(const float* x, const float* y, int64_t count) {
  using L = Lanes;
  L::F sums[2] = {L::all_f(0), L::all_f(0)};
  int64_t i = 0;
  for (; i + 2 * L::kWidth <= count; i += 2 * L::kWidth)
    for (int n = 0; n < 2; ++n)
      sums[n] = L::fma(L::load_f(x + i + n * L::kWidth), L::load_f(y + i + n * L::kWidth), sums[n]);
  float sum = L::total(L::add(sums[0], sums[1]));
  for (; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

/// log(1 + e^x) is max(x, 0) + log(1 + t) with t = e^-|x|, and log(1 + t) = 2 artanh(s) with s = t / (2 + t):
/// at most 1/3, so that of its series the first term left out is below 2^-30 of the sum.
void softplus(const float* x, int64_t count, float* out) {
  using L = Lanes;
  map(x, count, out, [](L::F v) {
    const L::F t = exp_of(L::sub(L::all_f(0), L::abs(v)));
    const L::F s = L::div(t, L::add(L::all_f(2), t)), z = L::mul(s, s);
    L::F sum = L::all_f(1.0f / 15);
    for (const float term : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
      sum = L::fma(sum, z, L::all_f(term));
    return L::fma(L::add(s, s), sum, L::max(L::all_f(0), v));  // of max, NaN is the second's
  });
}

/// kVectors vectors of columns from `at` on of one row: what the decayed matrix gives for k and for q in one
/// pass, then the matrix itself in another. q S'' is q S' and what the change adds to it.
template <int kVectors>
inline void delta_columns_of_one(const DeltaRows& a, int64_t at) {
  using L = Lanes;
  L::F known[kVectors], sums[kVectors], change[kVectors];
  for (int n = 0; n < kVectors; ++n) known[n] = sums[n] = L::all_f(0);
  const auto decayed = [&](int64_t i, int n) {
    return L::mul(L::all_f(a.decay[i]), L::load_f(a.from + i * a.stride + at + n * L::kWidth));
  };
  for (int64_t i = 0; i < a.keys; ++i) {
    for (int n = 0; n < kVectors; ++n) {
      const L::F s = decayed(i, n);
      known[n] = L::fma(L::all_f(a.k[i]), s, known[n]);
      sums[n] = L::fma(L::all_f(a.q[i]), s, sums[n]);
    }
  }
  for (int n = 0; n < kVectors; ++n) {
    const int64_t c = at + n * L::kWidth;
    change[n] = L::mul(L::all_f(a.beta[0]), L::sub(L::load_f(a.values + c), known[n]));
    L::store_f(a.out + c, L::fma(L::all_f(a.key_query[0]), change[n], sums[n]));
  }
  for (int64_t i = 0; i < a.keys; ++i)
    for (int n = 0; n < kVectors; ++n)
      L::store_f(a.to + i * a.stride + at + n * L::kWidth,
                 L::fma(L::all_f(a.k[i]), change[n], decayed(i, n)));
}

/// The same sums of several rows. The columns stay in a.tile from the first row to the last: one pass over
/// them for each row puts the row's change into them, lets them decay for the row behind it, and takes what
/// they then give for that row's k and q.
template <int kVectors>
inline void delta_columns(const DeltaRows& a, int64_t at) {
  using L = Lanes;
  constexpr int64_t kColumns = kVectors * L::kWidth;
  if (a.rows == 1) return delta_columns_of_one<kVectors>(a, at);
  const float *k = a.k, *q = a.q, *decay = a.decay;
  L::F known[kVectors], sums[kVectors], change[kVectors];
  for (int n = 0; n < kVectors; ++n) known[n] = sums[n] = L::all_f(0);
  for (int64_t i = 0; i < a.keys; ++i) {
    const float* from = a.from + i * a.stride + at;
    for (int n = 0; n < kVectors; ++n) {
      const L::F s = L::mul(L::all_f(decay[i]), L::load_f(from + n * L::kWidth));
      known[n] = L::fma(L::all_f(k[i]), s, known[n]);
      sums[n] = L::fma(L::all_f(q[i]), s, sums[n]);
      L::store_f(a.tile + i * kColumns + n * L::kWidth, s);
    }
  }
  for (int64_t r = 0;; ++r) {
    const L::F beta = L::all_f(a.beta[r]), key_query = L::all_f(a.key_query[r]);
    for (int n = 0; n < kVectors; ++n) {
      const int64_t c = at + n * L::kWidth;
      change[n] = L::mul(beta, L::sub(L::load_f(a.values + r * a.value_stride + c), known[n]));
      L::store_f(a.out + r * a.out_stride + c, L::fma(key_query, change[n], sums[n]));
      known[n] = sums[n] = L::all_f(0);
    }
    if (r + 1 == a.rows) break;
    const float* last_k = std::exchange(k, k + a.keys);
    q += a.keys, decay += a.keys;
    for (int64_t i = 0; i < a.keys; ++i) {
      float* tile = a.tile + i * kColumns;
      const L::F last = L::all_f(last_k[i]), by = L::all_f(decay[i]);
      const L::F next_k = L::all_f(k[i]), next_q = L::all_f(q[i]);
      for (int n = 0; n < kVectors; ++n) {
        const L::F s = L::mul(by, L::fma(last, change[n], L::load_f(tile + n * L::kWidth)));
        known[n] = L::fma(next_k, s, known[n]);
        sums[n] = L::fma(next_q, s, sums[n]);
        L::store_f(tile + n * L::kWidth, s);
      }
    }
  }
  for (int64_t i = 0; i < a.keys; ++i) {
    for (int n = 0; n < kVectors; ++n) {
      const L::F s = L::load_f(a.tile + i * kColumns + n * L::kWidth);
      L::store_f(a.to + i * a.stride + at + n * L::kWidth, L::fma(L::all_f(k[i]), change[n], s));
    }
  }
}

/// One column, likewise.
inline void delta_column(const DeltaRows& a, int64_t at) {
  for (int64_t i = 0; i < a.keys; ++i) a.tile[i] = a.from[i * a.stride + at];
  for (int64_t r = 0; r < a.rows; ++r) {
    const float *k = a.k + r * a.keys, *q = a.q + r * a.keys, *decay = a.decay + r * a.keys;
    float known = 0, sum = 0;
    for (int64_t i = 0; i < a.keys; ++i) {
      a.tile[i] *= decay[i];
      known += k[i] * a.tile[i];
      sum += q[i] * a.tile[i];
    }
    const float change = a.beta[r] * (a.values[r * a.value_stride + at] - known);
    a.out[r * a.out_stride + at] = sum + a.key_query[r] * change;
    for (int64_t i = 0; i < a.keys; ++i) a.tile[i] += k[i] * change;
  }
  for (int64_t i = 0; i < a.keys; ++i) a.to[i * a.stride + at] = a.tile[i];
}

void delta_rule(const DeltaRows& rows) {
  using L = Lanes;
  // Two sums a vector are in registers, and what all rows of the matrix share: AVX2 has 16.
  constexpr int kVectors = L::kWidth == 8 ? 2 : 4;
  static_assert(kVectors * L::kWidth <= kDeltaColumns);
  int64_t at = 0;
  // One row's matrix comes from memory: read in whole rows of it, as lines lie there.
  if (rows.rows == 1)
    for (; at + 2 * kVectors * L::kWidth <= rows.columns; at += 2 * kVectors * L::kWidth)
      delta_columns_of_one<2 * kVectors>(rows, at);
  for (; at + kVectors * L::kWidth <= rows.columns; at += kVectors * L::kWidth)
    delta_columns<kVectors>(rows, at);
  for (; at + L::kWidth <= rows.columns; at += L::kWidth) delta_columns<1>(rows, at);
  for (; at < rows.columns; ++at) delta_column(rows, at);
}

void tap_after_tap(const float* weights, int64_t taps, int64_t count, float* out) {
  using L = Lanes;
  int64_t i = 0;
  for (; taps == 4 && i + L::kWidth <= count; i += L::kWidth) {
    L::I words[4];
    L::words_of_rows(reinterpret_cast<const uint8_t*>(weights + 4 * i), 4 * sizeof(float), words);
    for (int k = 0; k < 4; ++k) L::store_f(out + k * count + i, L::as_float(words[k]));
  }
  for (; i < count; ++i)
    for (int64_t k = 0; k < taps; ++k) out[k * count + i] = weights[i * taps + k];
}

void convolve(const ConvRow& row, int64_t count, float* out) {
  using L = Lanes;
  const auto finished = [&](L::F sum) {
    const auto sigmoid = [](L::F x) { return L::add(L::all_f(1), exp_of(L::sub(L::all_f(0), x))); };
    return row.silu ? L::div(sum, sigmoid(sum)) : sum;
  };
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth) {
    L::F sum = L::all_f(0);
    for (int64_t k = 0; k < row.taps; ++k)
      sum = L::fma(L::load_f(row.weights + k * row.weights_stride + i), L::load_f(row.tap(k) + i), sum);
    L::store_f(out + i, finished(sum));
  }
  if (i == count) return;
  float rest[L::kWidth] = {};
  for (int64_t k = 0; k < row.taps; ++k)
    for (int64_t j = i; j < count; ++j)
      rest[j - i] += row.weights[k * row.weights_stride + j] * row.tap(k)[j];
  L::store_f(rest, finished(L::load_f(rest)));
  for (int64_t j = i; j < count; ++j) out[j] = rest[j - i];
}
