// Attention over expanded keys and values in whole numbers of 16 bits, whose products in pairs are twice
// those of float32. Include it inside an anonymous namespace only, after expanded_f32.h, which makes keys and
// values, and a tier's Int16.
//
// A query, a key and a position's value are whole numbers under a scale each (int16_scales.h), in the place
// of their floats, and what is left of it holds the scales:
//   query   [key()], its scale
//   keys    [count / 16][key() / 2][16] pairs of columns; behind a panel's, its 16 scales
//   values  [value / 16][kExpandedKeys / 2][16] pairs of positions; behind the first panel's, the positions'
//           scales and the largest magnitudes of their values, [2][kExpandedKeys]
// Weights are multiplied with the positions' scales, and then made as large as those magnitudes allow: no sum
// of numbers' products leaves 32 bits. (A scale for each column of values would be less work, but then a
// row's bits would depend on positions that it does not see.)

#include "backend/cpu/simd/int16_scales.h"

constexpr int kMostPairRows = 6;  // rows whose sums of pairs are in registers

/// Two vectors of numbers as pairs, a lane each.
inline L::I pairs_of(L::I first, L::I second) {
  return L::bit_or(L::bit_and(first, L::all(0xFFFF)), L::shift_left(second, 16));
}
inline L::I number_of(F x, F inverse) { return L::round(L::mul(x, inverse)); }

/// Numbers of a row: of its parts, one after the other, each a multiple of 16. out may be where the first
/// part is. Behind them their scale.
inline void row_to_numbers(const float* first, int64_t first_count, const float* other, int64_t other_count,
                           float* out) {
  F squares = L::all_f(0), most = squares;
  const auto take = [&](const float* from, int64_t count) {
    for (int64_t c = 0; c < count; c += L::kWidth) {
      const F x = L::load_f(from + c);
      squares = L::fma(x, x, squares), most = L::max(L::abs(x), most);
    }
  };
  take(first, first_count);
  take(other, other_count);
  float scale[L::kWidth];
  L::store_f(scale, scales_of(L::all_f(L::total(squares)), L::all_f(L::largest(most))));
  const F inverse = inverse_of(*scale);
  float* to = out;
  const auto put = [&](const float* from, int64_t count) {
    for (int64_t c = 0; c < count; c += 2 * L::kWidth, to += L::kWidth) {
      const L::I low = number_of(L::load_f(from + c), inverse);
      L::store(to, Int16::in_order(Int16::pack(low, number_of(L::load_f(from + c + L::kWidth), inverse))));
    }
  };
  put(first, first_count);
  put(other, other_count);
  *to = *scale;
}

void query_int16(const float* nope, const float* rope, ExpandedShape shape, float* out) {
  row_to_numbers(nope, shape.nope, rope, shape.rope, out);
}

/// Of latents alone; the columns behind them are keys' as they are.
void prepare_int16(float* rows, int64_t stride, int64_t count, ExpandedShape shape) {
  for (int64_t t = 0; t < count; ++t, rows += stride) row_to_numbers(rows, shape.rank, nullptr, 0, rows);
}

/// A right side's panel [inner][kSide] to pairs and the scales of its columns.
inline void panel_to_pairs(float* panel, int64_t inner) {
  for (int64_t p = 0; p < kSide; p += L::kWidth) {
    F squares = L::all_f(0), most = squares;
    for (int64_t c = 0; c < inner; ++c) {
      const F x = L::load_f(panel + c * kSide + p);
      squares = L::fma(x, x, squares), most = L::max(L::abs(x), most);
    }
    float scales[L::kWidth], inverses[L::kWidth];
    L::store_f(scales, scales_of(squares, most));
    for (int i = 0; i < L::kWidth; ++i) inverses[i] = one_over(scales[i]);
    const F inverse = L::load_f(inverses);
    for (int64_t c = 0; c < inner; c += 2) {
      const L::I first = number_of(L::load_f(panel + c * kSide + p), inverse);
      const L::I second = number_of(L::load_f(panel + (c + 1) * kSide + p), inverse);
      L::store(panel + c / 2 * kSide + p, pairs_of(first, second));
    }
    // Nothing is left to read there.
    L::store_f(panel + inner / 2 * kSide + p, L::load_f(scales));
  }
}

/// Values of `count` positions, an even number, to pairs.
inline void values_to_pairs(float* values, int64_t count, int64_t columns) {
  float scales[kExpandedKeys], largest[kExpandedKeys];
  for (int64_t t = 0; t < count; ++t) {
    F squares = L::all_f(0), most = squares;
    for (int64_t c = 0; c < columns; c += kSide) {
      for (int64_t p = 0; p < kSide; p += L::kWidth) {
        const F x = L::load_f(values + c * kExpandedKeys + t * kSide + p);
        squares = L::fma(x, x, squares), most = L::max(L::abs(x), most);
      }
    }
    float scale[L::kWidth];
    largest[t] = L::largest(most);
    L::store_f(scale, scales_of(L::all_f(L::total(squares)), L::all_f(largest[t])));
    scales[t] = *scale;
  }
  for (int64_t c = 0; c < columns; c += kSide) {
    float* panel = values + c * kExpandedKeys;
    for (int64_t t = 0; t < count; t += 2) {
      const F one = inverse_of(scales[t]), other = inverse_of(scales[t + 1]);
      L::I pairs[kParts];
      for (int p = 0; p < kParts; ++p) {
        const float* at = panel + t * kSide + p * L::kWidth;
        pairs[p] = pairs_of(number_of(L::load_f(at), one), number_of(L::load_f(at + kSide), other));
      }
      for (int p = 0; p < kParts; ++p) L::store(panel + t / 2 * kSide + p * L::kWidth, pairs[p]);
    }
  }
  float* behind = values + kExpandedKeys / 2 * kSide;
  std::copy_n(largest, count, std::copy_n(scales, count, behind) + (kExpandedKeys - count));
}

/// The products of M rows of pairs and a panel: finish(row, vector of the panel's columns, sums).
template <int M, typename Finish>
inline void multiply_pairs(const float* a, int64_t a_stride, const float* b, int64_t pairs, Finish finish) {
  L::I sums[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) sums[m][p] = L::zero();
  }
  for (int64_t i = 0; i < pairs; ++i, b += kSide) {
    L::I right[kParts];
    for (int p = 0; p < kParts; ++p)
      right[p] = Int16::load(reinterpret_cast<const int16_t*>(b + p * L::kWidth));
    for (int m = 0; m < M; ++m) {
      const L::I left = L::four(reinterpret_cast<const int8_t*>(a + m * a_stride + i));
      for (int p = 0; p < kParts; ++p) sums[m][p] = Int16::multiply_add(left, right[p], sums[m][p]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) finish(m, p, L::to_float(sums[m][p]));
  }
}
template <typename Finish>
inline void multiply_rows(const float* a, int64_t a_stride, int64_t rows, const float* b, int64_t pairs,
                          Finish finish) {
  in_groups(rows, kMostPairRows, [&](int64_t first, int64_t size) {
    with_size<kMostPairRows>(size, [&](auto high) {
      multiply_pairs<decltype(high)::value>(
          a + first * a_stride, a_stride, b, pairs,
          [&](int m, int p, F sum) { finish(first + m, p * L::kWidth, sum); });
    });
  });
}

/// The last one makes pairs of all.
void k_panel_int16(const float* numbers, int64_t panel, ExpandedShape shape, float* k_b) {
  k_panel(numbers, panel, shape, k_b);
  if ((panel + 1) * kSide < shape.rank) return;
  for (int64_t c = 0; c < shape.nope; c += kSide) panel_to_pairs(k_b + c * shape.rank, shape.rank);
}
void v_panel_int16(const float* numbers, int64_t panel, ExpandedShape shape, float* v_b) {
  v_panel(numbers, panel, shape, v_b);
  panel_to_pairs(v_b + panel * kSide * shape.rank, shape.rank);
}

void expand_int16(const float* const* pages, int64_t stride, int64_t count, const float* k_b,
                  const float* v_b, ExpandedShape shape, float* work, float* keys, float* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key(), behind = shape.rank / 2;
  const auto make = [&](const float* b, int64_t c, float* out) {
    const float *panel = b + c * shape.rank, *scales = panel + behind * kSide;
    for (int64_t t = 0; t < whole; t += kExpandedRows) {
      const float* rows = pages[t / kExpandedRows];
      multiply_rows(rows, stride, std::min(kExpandedRows, whole - t), panel, behind,
                    [&](int64_t row, int64_t column, F sum) {
                      const F both =
                          L::mul(L::load_f(scales + column), L::all_f(rows[row * stride + behind]));
                      L::store_f(out + (t + row) * kSide + column, L::mul(sum, both));
                    });
    }
  };
  expand_by(make, pages, stride, count, k_b, v_b, shape, work, keys, values);
  for (int64_t t = 0; t < whole; t += kSide) panel_to_pairs(keys + t * key, key);
  values_to_pairs(values, whole, shape.value);
}

void arrange_int16(const float* const* pages, int64_t stride, int64_t values_at, int64_t count,
                   ExpandedShape shape, float* keys, float* values) {
  arrange(pages, stride, values_at, count, shape, keys, values);
  const int64_t whole = round_up(count, kSide), key = shape.key();
  for (int64_t t = 0; t < whole; t += kSide) panel_to_pairs(keys + t * key, key);
  values_to_pairs(values, whole, shape.value);
}

/// A row's weights [end], times these scales of their positions, as numbers; `largest` are the magnitudes of
/// the positions' values. Returns what one of the numbers is worth.
inline float weights_to_numbers(float* weights, const float* scales, const float* largest, int64_t end,
                                int16_t* out) {
  F most = L::all_f(0), sum = most;
  for (int64_t t = 0; t < end; t += L::kWidth) {
    const F weight = L::load_f(weights + t), scaled = L::mul(weight, L::load_f(scales + t));
    sum = L::fma(weight, L::load_f(largest + t), sum);
    most = L::max(scaled, most);
    L::store_f(weights + t, scaled);
  }
  const float of_numbers = L::largest(most) / kLargestNumber, of_sums = L::total(sum) / kLargestSum;
  const float worth = of_numbers > of_sums ? of_numbers : of_sums;
  const F inverse = inverse_of(worth);
  for (int64_t t = 0; t < end; t += 2 * L::kWidth) {
    const L::I low = number_of(L::load_f(weights + t), inverse);
    L::store(out + t,
             Int16::in_order(Int16::pack(low, number_of(L::load_f(weights + t + L::kWidth), inverse))));
  }
  return worth;
}

void attend_int16(const float* queries, const int32_t* counts, int64_t rows, const float* keys,
                  const float* values, ExpandedShape shape, float scale, float* work, float* largest,
                  float* total, float* sums) {
  const int64_t end = round_up(largest_of(counts, rows), kSide), key = shape.key();
  if (end == 0) return;
  for (int64_t t = 0; t < end; t += kSide) {
    const float *panel = keys + t * key, *scales = panel + key / 2 * kSide;
    multiply_rows(queries, key, rows, panel, key / 2, [&](int64_t row, int64_t column, F sum) {
      const F both = L::mul(L::load_f(scales + column), L::all_f(queries[row * key + key / 2]));
      L::store_f(work + row * kExpandedKeys + t + column, L::mul(sum, both));
    });
  }
  constexpr int64_t kStride = kExpandedKeys / 2;
  float* weights = work + kExpandedRows * std::max(kExpandedKeys, shape.value);
  const float* of_positions = values + kExpandedKeys / 2 * kSide;
  float worth[kExpandedRows];
  for (int64_t i = 0; i < rows; ++i) {
    float* scores = work + i * kExpandedKeys;
    const float kept = softmax(scores, counts[i], end, scale, largest + i, total + i);
    worth[i] = weights_to_numbers(scores, of_positions, of_positions + kExpandedKeys, end,
                                  reinterpret_cast<int16_t*>(weights + i * kStride));
    keep(kept, sums + i * shape.value, shape.value);
  }
  for (int64_t c = 0; c < shape.value; c += kSide) {
    multiply_rows(weights, kStride, rows, values + c * kExpandedKeys, end / 2,
                  [&](int64_t row, int64_t column, F sum) {
                    float* at = sums + row * shape.value + c + column;
                    L::store_f(at, L::fma(sum, L::all_f(worth[row]), L::load_f(at)));
                  });
  }
}
