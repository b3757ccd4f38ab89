// Attention over expanded keys and values in float32, for tiers without quick products of bfloat16. Include
// it inside an anonymous namespace only, after a tier's Lanes, exp.h and groups.h.

using L = Lanes;
using F = Lanes::F;

constexpr int64_t kSide = 16;              // columns of a right side's panel
constexpr int kParts = kSide / L::kWidth;  // vectors of these
/// Rows whose sums are in registers, and inner indices of a panel that stay in the first-level cache.
constexpr int kMostRows = 6;
constexpr int64_t kInner = 256;

/// c [M][kSide] (+)= a [M][inner] times a panel.
template <bool adds, int M>
void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t inner, float* c,
                    int64_t c_stride) {
  F sums[M][kParts];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p)
      sums[m][p] = adds ? L::load_f(c + m * c_stride + p * L::kWidth) : L::all_f(0);
  }
  for (int64_t i = 0; i < inner; ++i, b += kSide) {
    F right[kParts];
    for (int p = 0; p < kParts; ++p) right[p] = L::load_f(b + p * L::kWidth);
    for (int m = 0; m < M; ++m) {
      const F left = L::all_f(a[m * a_stride + i]);
      for (int p = 0; p < kParts; ++p) sums[m][p] = L::fma(left, right[p], sums[m][p]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < kParts; ++p) L::store_f(c + m * c_stride + p * L::kWidth, sums[m][p]);
  }
}

/// c [rows][columns] (+)= a [rows][inner] times the right side b, whose panels are `panel` numbers apart.
template <bool adds>
void multiply(const float* a, int64_t a_stride, int64_t rows, const float* b, int64_t panel, int64_t inner,
              int64_t columns, float* c, int64_t c_stride) {
  const auto block = [&](auto more, int64_t from, int64_t to, const float* right, float* out) {
    in_groups(rows, kMostRows, [&](int64_t first, int64_t size) {
      with_size<kMostRows>(size, [&](auto high) {
        multiply_block<decltype(more)::value, decltype(high)::value>(a + first * a_stride + from, a_stride,
                                                                     right + from * kSide, to - from,
                                                                     out + first * c_stride, c_stride);
      });
    });
  };
  for (int64_t n = 0; n < columns; n += kSide, b += panel) {
    block(std::bool_constant<adds>{}, 0, std::min(inner, kInner), b, c + n);
    for (int64_t i = kInner; i < inner; i += kInner)
      block(std::true_type{}, i, std::min(inner, i + kInner), b, c + n);
  }
}

/// kSide rows of `columns` numbers (a multiple of 4), `stride` apart: out[column][row].
inline void turn(const float* rows, int64_t stride, int64_t columns, float* out) {
  for (int64_t c = 0; c < columns; c += 4, out += 4 * kSide) {
    for (int64_t p = 0; p < kSide; p += L::kWidth) {
      L::I words[4];
      L::words_of_rows(reinterpret_cast<const uint8_t*>(rows + p * stride + c), stride * 4, words);
      for (int i = 0; i < 4; ++i) L::store(out + i * kSide + p, words[i]);
    }
  }
}

/// From [nope][kSide latents].
void k_panel(const float* numbers, int64_t panel, ExpandedShape shape, float* k_b) {
  for (int64_t c = 0; c < shape.nope; c += kSide)
    turn(numbers + c * kSide, kSide, kSide, k_b + c * shape.rank + panel * kSide * kSide);
}

/// From [rank][kSide values], which is a right side's panel.
void v_panel(const float* numbers, int64_t panel, ExpandedShape shape, float* v_b) {
  std::copy_n(numbers, shape.rank * kSide, v_b + panel * shape.rank * kSide);
}

void query(const float* nope, const float* rope, ExpandedShape shape, float* out) {
  std::copy_n(rope, shape.rope, std::copy_n(nope, shape.nope, out));
}

void from_halves(const uint16_t* halves, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += L::kWidth) L::store_f(out + i, L::halves(halves + i));
}

void expand(const float* const* pages, int64_t stride, int64_t count, const float* k_b, const float* v_b,
            ExpandedShape shape, float* work, float* keys, float* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key();
  // Column c and the kSide - 1 behind it of all rows, times b.
  const auto make = [&](const float* b, int64_t c, float* out) {
    for (int64_t t = 0; t < whole; t += kExpandedRows) {
      multiply<false>(pages[t / kExpandedRows], stride, std::min(kExpandedRows, whole - t),
                      b + c * shape.rank, 0, shape.rank, kSide, out + t * kSide, kSide);
    }
  };
  for (int64_t c = 0; c < shape.nope; c += kSide) {
    make(k_b, c, work);
    for (int64_t t = 0; t < whole; t += kSide)
      turn(work + t * kSide, kSide, kSide, keys + t * key + c * kSide);
  }
  for (int64_t t = 0; t < whole; t += kSide) {
    turn(pages[t / kExpandedRows] + t % kExpandedRows * stride + shape.rank, stride, shape.rope,
         keys + t * key + shape.nope * kSide);
  }
  // Behind the last row may lie no number at all, and a weight of zero would not be enough.
  for (int64_t c = 0; c < shape.value; c += kSide) {
    float* out = values + c * kExpandedKeys;
    make(v_b, c, out);
    std::fill(out + count * kSide, out + whole * kSide, 0.0f);
  }
}

/// A row's scores to weights e^(score * scale - largest), zeroes from `count` to `end`. Returns what the new
/// largest leaves of earlier sums: 0 where there were none.
inline float softmax(float* scores, int64_t count, int64_t end, float scale, float* largest, float* total) {
  const float before = *largest;
  const int64_t padded = round_up(count, L::kWidth);
  for (int64_t t = count; t < padded; ++t) scores[t] = scores[0];  // changes no maximum
  F most = L::all_f(-__builtin_inff());
  for (int64_t t = 0; t < padded; t += L::kWidth) {
    const F scaled = L::mul(L::load_f(scores + t), L::all_f(scale));
    L::store_f(scores + t, scaled);
    most = L::max(scaled, most);
  }
  if (const float here = L::largest(most); here > before) *largest = here;
  for (int64_t t = 0; t < padded; t += L::kWidth)
    L::store_f(scores + t, exp_of(L::sub(L::load_f(scores + t), L::all_f(*largest))));
  std::fill(scores + count, scores + end, 0.0f);
  F sum = L::all_f(0);
  for (int64_t t = 0; t < padded; t += L::kWidth) sum = L::add(sum, L::load_f(scores + t));
  float kept[L::kWidth] = {0};
  if (before != -__builtin_inff()) L::store_f(kept, exp_of(L::all_f(before - *largest)));
  *total = *total * kept[0] + L::total(sum);
  return kept[0];
}

void attend(const float* queries, const int32_t* counts, int64_t rows, const float* keys, const float* values,
            ExpandedShape shape, float scale, float* work, float* largest, float* total, float* sums) {
  const int64_t end = round_up(largest_of(counts, rows), kSide);
  if (end == 0) return;
  multiply<false>(queries, shape.key(), rows, keys, shape.key() * kSide, shape.key(), end, work,
                  kExpandedKeys);
  for (int64_t i = 0; i < rows; ++i) {
    const float kept = softmax(work + i * kExpandedKeys, counts[i], end, scale, largest + i, total + i);
    // What lies there before the first keys may be no number at all.
    float* sum = sums + i * shape.value;
    if (kept == 0) std::fill_n(sum, shape.value, 0.0f);
    if (kept == 0 || kept == 1) continue;
    for (int64_t c = 0; c < shape.value; c += L::kWidth)
      L::store_f(sum + c, L::mul(L::load_f(sum + c), L::all_f(kept)));
  }
  multiply<true>(work, kExpandedKeys, rows, values, kExpandedKeys * kSide, end, shape.value, sums,
                 shape.value);
}
