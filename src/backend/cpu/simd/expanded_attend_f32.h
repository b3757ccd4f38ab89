// Attention over expanded keys and values in float32. Include it inside an anonymous namespace only, after
// expanded_f32.h.

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

void query(const float* nope, const float* rope, ExpandedShape shape, float* out) {
  std::copy_n(rope, shape.rope, std::copy_n(nope, shape.nope, out));
}

void expand(const float* const* pages, int64_t stride, int64_t count, const float* k_b, const float* v_b,
            ExpandedShape shape, float* work, float* keys, float* values) {
  const int64_t whole = round_up(count, kSide);
  const auto make = [&](const float* b, int64_t c, float* out) {
    for (int64_t t = 0; t < whole; t += kExpandedRows) {
      multiply<false>(pages[t / kExpandedRows], stride, std::min(kExpandedRows, whole - t),
                      b + c * shape.rank, 0, shape.rank, kSide, out + t * kSide, kSide);
    }
  };
  expand_by(make, pages, stride, count, k_b, v_b, shape, work, keys, values);
}

void attend(const float* queries, const int32_t* counts, int64_t rows, const float* keys, const float* values,
            ExpandedShape shape, float scale, float* work, float* largest, float* total, float* sums) {
  const int64_t end = round_up(largest_of(counts, rows), kSide);
  if (end == 0) return;
  multiply<false>(queries, shape.key(), rows, keys, shape.key() * kSide, shape.key(), end, work,
                  kExpandedKeys);
  for (int64_t i = 0; i < rows; ++i) {
    const float kept = softmax(work + i * kExpandedKeys, counts[i], end, scale, largest + i, total + i);
    keep(kept, sums + i * shape.value, shape.value);
  }
  multiply<true>(work, kExpandedKeys, rows, values, kExpandedKeys * kSide, end, shape.value, sums,
                 shape.value);
}
