// Attention over expanded keys and values: what its tiers share. Include it inside an anonymous namespace
// only, after groups.h, pairs_avx512.h, turn_avx512.h, expanded_softmax.h and the tier's own product:
//   multiply(a, a_stride, rows, b, panel, inner, columns, c, c_stride, beside)
//     c[rows][columns] = a [rows][inner] times the right side b (expanded.h), whose panels are `panel`
//     numbers apart; rows and columns are multiples of 16, inner is one of 32. beside: a Softmax (or null)
//     whose next() it may call between its products
//   multiply_adding                                        the same, added to c
//   multiply_passing                                       the same, where b stays for other rows, and a does
//   not

/// The first 16 numbers and the others in turns.
inline __m512i in_turns(__m512i numbers) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, numbers);
}
/// 32 columns of an unpacked row, in their order.
inline __m512i in_order(const uint16_t* at) { return in_turns(_mm512_loadu_si512(at)); }

/// k_b's inner indices are its rows: two of them side by side, for 16 columns at a time.
void k_panel(const uint16_t* unpacked, int64_t panel, ExpandedShape shape, uint16_t* k_b) {
  for (int64_t c = 0; c < shape.nope; c += kPair, unpacked += kSide * kPair) {
    uint16_t* out = k_b + c / kSide * shape.rank * kSide + panel * kSide / 2 * kPair;
    for (int64_t r = 0; r < kSide; r += 2, out += kPair) {
      const __m512i row = in_order(unpacked + r * kPair), next = in_order(unpacked + (r + 1) * kPair);
      _mm512_storeu_si512(out, pairs_of(row, next, false));
      _mm512_storeu_si512(out + shape.rank * kSide, pairs_of(row, next, true));
    }
  }
}

/// v_b's are its columns, of which two stand side by side already: words, transposed.
void v_panel(const uint16_t* unpacked, int64_t panel, ExpandedShape shape, uint16_t* v_b) {
  uint16_t* out = v_b + panel * shape.rank * kSide;
  for (int64_t c = 0; c < shape.rank; c += kPair, unpacked += kSide * kPair) {
    __m512i words[kSide];
    for (int64_t i = 0; i < kSide; ++i) words[i] = in_order(unpacked + i * kPair);
    turn(words);
    for (int64_t i = 0; i < kSide; ++i, out += kPair) _mm512_storeu_si512(out, words[i]);
  }
}

void query(const float* nope, const float* rope, ExpandedShape shape, uint16_t* out) {
  const auto round = [&](const float* from, int64_t count) {
    for (int64_t c = 0; c < count; c += kPair, out += kPair)
      _mm512_storeu_si512(out, to_bf16(_mm512_loadu_ps(from + c), _mm512_loadu_ps(from + c + kSide)));
  };
  round(nope, shape.nope);
  round(rope, shape.rope);
}

/// Columns c to c + 31 of keys: words(t), row t's.
template <typename Words>
void put_keys(int64_t whole, int64_t key, int64_t c, Words words, uint16_t* keys) {
  for (int64_t t = 0; t < whole; t += kSide) {
    __m512i pairs[kSide];
    for (int64_t i = 0; i < kSide; ++i) pairs[i] = words(t + i);
    turn(pairs);
    uint16_t* out = keys + t * key + c * kSide;
    for (int64_t i = 0; i < kSide; ++i, out += kPair) _mm512_storeu_si512(out, pairs[i]);
  }
}
/// Columns c to c + 15 of values: words(t), those of row t and then of the next. Queries see pairs of up to
/// 32 rows.
template <typename Words>
void put_values(int64_t count, int64_t c, Words words, uint16_t* values) {
  uint16_t* out = values + c * kExpandedKeys;
  for (int64_t t = 0; t < round_up(count, kPair); t += 2, out += kPair)
    _mm512_storeu_si512(out, in_turns(words(t)));
}

/// 32 columns of the right side after the other, which stay in the first-level cache while all rows pass by.
void expand(const uint16_t* const* pages, int64_t stride, int64_t count, const uint16_t* k_b,
            const uint16_t* v_b, ExpandedShape shape, float* work, uint16_t* keys, uint16_t* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key();
  // work = [whole][kPair], columns c .. c + columns of all rows times b.
  const auto make = [&](const uint16_t* b, int64_t c, int64_t columns) {
    for (int64_t t = 0; t < whole; t += kExpandedRows) {
      const int64_t rows = whole - t < kExpandedRows ? whole - t : kExpandedRows;
      multiply_passing(pages[t / kExpandedRows], stride, rows, b + c * shape.rank, shape.rank * kSide,
                       shape.rank, columns, work + t * kPair, kPair, nullptr);
    }
  };
  for (int64_t c = 0; c < shape.nope; c += kPair) {
    make(k_b, c, kPair);
    const auto rounded = [&](int64_t t) {
      return to_bf16(_mm512_loadu_ps(work + t * kPair), _mm512_loadu_ps(work + t * kPair + kSide));
    };
    put_keys(whole, key, c, rounded, keys);
  }
  for (int64_t c = 0; c < shape.rope; c += kPair) {
    const auto in_row = [&](int64_t t) {
      return _mm512_loadu_si512(pages[t / kExpandedRows] + t % kExpandedRows * stride + shape.rank + c);
    };
    put_keys(whole, key, shape.nope + c, in_row, keys);
  }
  // Behind the last row may lie no number at all, and a weight of zero would not be enough.
  const auto row = [&](int64_t t, int64_t c) {
    return t < count ? _mm512_loadu_ps(work + t * kPair + c) : _mm512_setzero_ps();
  };
  for (int64_t first = 0; first < shape.value; first += kPair) {
    const int64_t columns = shape.value - first < kPair ? shape.value - first : kPair;
    make(v_b, first, columns);
    for (int64_t c = 0; c < columns; c += kSide)
      put_values(
          count, first + c, [&](int64_t t) { return to_bf16(row(t, c), row(t + 1, c)); }, values);
  }
}

void arrange(const uint16_t* const* pages, int64_t stride, int64_t values_at, int64_t count,
             ExpandedShape shape, uint16_t* keys, uint16_t* values) {
  const auto row = [&](int64_t t) { return pages[t / kExpandedRows] + t % kExpandedRows * stride; };
  for (int64_t c = 0; c < shape.key(); c += kPair) {
    const auto in_row = [&](int64_t t) { return _mm512_loadu_si512(row(t) + c); };
    put_keys(round_up(count, kSide), shape.key(), c, in_row, keys);
  }
  for (int64_t c = 0; c < shape.value; c += kSide) {
    const auto half = [&](int64_t t) {
      return t < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row(t) + values_at + c))
                       : _mm256_setzero_si256();
    };
    const auto both = [&](int64_t t) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(half(t)), half(t + 1), 1);
    };
    put_values(count, c, both, values);
  }
}

constexpr float kLog2E = 1.44269504f;

/// In halves: while the one's products are made, the other's scores become weights.
void attend(const uint16_t* queries, const int32_t* counts, int64_t rows, const uint16_t* keys,
            const uint16_t* values, ExpandedShape shape, float scale, float* work, float* largest,
            float* total, float* sums) {
  constexpr int64_t kHalf = kExpandedRows / 2;
  const int64_t end = round_up(largest_of(counts, rows), kPair), whole = round_up(rows, kSide);
  if (end == 0) return;
  auto* weights = reinterpret_cast<uint16_t*>(work + kExpandedRows * std::max(kExpandedKeys, shape.value));
  float kept[kExpandedRows];
  const auto softmax = [&](int64_t first) {
    const int64_t count = rows - first < kHalf ? rows - first : kHalf;
    return Softmax{
        work + first * kExpandedKeys,    counts + first,  count,         end,         scale * kLog2E,
        weights + first * kExpandedKeys, largest + first, total + first, kept + first};
  };
  const auto score = [&](int64_t first, Softmax* beside) {
    multiply(queries + first * shape.key(), shape.key(), whole - first < kHalf ? whole - first : kHalf, keys,
             shape.key() * kSide, shape.key(), end, work + first * kExpandedKeys, kExpandedKeys, beside);
  };
  // Sums go on in the product, of what is kept of those before: mostly all. What lies there before the first
  // keys may be no number at all.
  const auto weigh = [&](int64_t first, Softmax* beside) {
    const int64_t last = rows - first < kHalf ? rows : first + kHalf;
    bool anew = true;
    for (int64_t i = first; i < last; ++i) anew = anew && kept[i] == 0;
    for (int64_t i = first; i < last && !anew; ++i) {
      if (kept[i] == 1) continue;
      const __m512 factor = _mm512_set1_ps(kept[i]);
      for (float* sum = sums + i * shape.value; sum < sums + (i + 1) * shape.value; sum += kSide) {
        const __m512 left = kept[i] == 0 ? _mm512_setzero_ps() : _mm512_mul_ps(_mm512_loadu_ps(sum), factor);
        _mm512_storeu_ps(sum, left);
      }
    }
    (anew ? multiply : multiply_adding)(
        weights + first * kExpandedKeys, kExpandedKeys, whole - first < kHalf ? whole - first : kHalf, values,
        kExpandedKeys * kSide, end, shape.value, sums + first * shape.value, shape.value, beside);
  };
  Softmax one = softmax(0);
  score(0, nullptr);
  if (rows <= kHalf) {
    one.finish();
    return weigh(0, nullptr);
  }
  Softmax other = softmax(kHalf);
  score(kHalf, &one);
  one.finish();
  weigh(0, &other);
  other.finish();
  weigh(kHalf, nullptr);
}
