// The bodies of grouped.h, which all tiers share. Include it inside an anonymous namespace only, after a
// tier's Lanes and `from_f16`; it ends with the tier's table.

/// q . N rows of keys: N loads of them go with one of q.
template <int N>
inline void score_rows(const float* q, const float* keys, const TileColumns& tile, float scale, float* out) {
  using L = Lanes;
  L::F sums[N];
  for (int n = 0; n < N; ++n) sums[n] = L::all_f(0);
  int64_t c = 0;
  for (; c + L::kWidth <= tile.columns; c += L::kWidth) {
    const L::F x = L::load_f(q + c);
    for (int n = 0; n < N; ++n) sums[n] = L::fma(x, L::load_f(keys + n * tile.stride + c), sums[n]);
  }
  for (int n = 0; n < N; ++n) {
    float sum = L::total(sums[n]);
    for (int64_t i = c; i < tile.columns; ++i) sum += q[i] * keys[n * tile.stride + i];
    out[n] = scale * sum;
  }
}

void scores(const float* q, TileColumns keys, float scale, float* out) {
  constexpr int kTogether = 4;
  int64_t t = 0;
  for (; t + kTogether <= keys.rows; t += kTogether)
    score_rows<kTogether>(q, keys.at + t * keys.stride, keys, scale, out + t);
  for (; t < keys.rows; ++t) score_rows<1>(q, keys.at + t * keys.stride, keys, scale, out + t);
}

/// N vectors of columns from c on stay in registers while all rows pass by.
template <int N>
inline void weigh_columns(const float* weights, const TileColumns& values, int64_t c, float by, float* sums) {
  using L = Lanes;
  L::F acc[N];
  for (int n = 0; n < N; ++n) acc[n] = L::mul(L::load_f(sums + c + n * L::kWidth), L::all_f(by));
  for (int64_t t = 0; t < values.rows; ++t) {
    const L::F weight = L::all_f(weights[t]);
    const float* row = values.at + t * values.stride + c;
    for (int n = 0; n < N; ++n) acc[n] = L::fma(weight, L::load_f(row + n * L::kWidth), acc[n]);
  }
  for (int n = 0; n < N; ++n) L::store_f(sums + c + n * L::kWidth, acc[n]);
}

void weigh(const float* weights, TileColumns values, float by, float* sums) {
  using L = Lanes;
  constexpr int kTogether = 4;
  int64_t c = 0;
  for (; c + kTogether * L::kWidth <= values.columns; c += kTogether * L::kWidth)
    weigh_columns<kTogether>(weights, values, c, by, sums);
  for (; c + L::kWidth <= values.columns; c += L::kWidth) weigh_columns<1>(weights, values, c, by, sums);
  for (; c < values.columns; ++c) {
    float sum = sums[c] * by;
    for (int64_t t = 0; t < values.rows; ++t) sum += weights[t] * values.at[t * values.stride + c];
    sums[c] = sum;
  }
}

constexpr GroupedKernels kTable{from_f16, scores, weigh};
