// Attention over expanded keys and values: what its tiers share. Include it inside an anonymous namespace
// only, after groups.h, pairs_avx512.h, turn_avx512.h and the tier's own product:
//   multiply(a, a_stride, rows, b, panel, inner, columns, c, c_stride)
//     c[rows][columns] = a [rows][inner] times the right side b (expanded.h), whose panels are `panel`
//     numbers apart; rows and columns are multiples of 16, inner is one of 32
//   multiply_adding                                        the same, added to c
//   multiply_passing                                       the same, where b stays for other rows, and a does
//   not

constexpr int64_t kSide = 16;         // columns of a right side's panel
constexpr int64_t kPair = 2 * kSide;  // its numbers of one pair of inner indices

/// The low vector's numbers before the high one's.
inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

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

/// v_b's are its columns, of which two stand side by side already: words, turned.
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

/// 32 columns of the right side after the other, which stay in the first-level cache while all rows pass by.
void expand(const uint16_t* const* pages, int64_t stride, int64_t count, const uint16_t* k_b,
            const uint16_t* v_b, ExpandedShape shape, float* work, uint16_t* keys, uint16_t* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key();
  // work = [whole][kPair], columns c .. c + columns of all rows times b.
  const auto make = [&](const uint16_t* b, int64_t c, int64_t columns) {
    for (int64_t t = 0; t < whole; t += kExpandedRows) {
      const int64_t rows = whole - t < kExpandedRows ? whole - t : kExpandedRows;
      multiply_passing(pages[t / kExpandedRows], stride, rows, b + c * shape.rank, shape.rank * kSide,
                       shape.rank, columns, work + t * kPair, kPair);
    }
  };
  // keys: words(t, i) are 32 columns of row t + i from c on.
  const auto put_keys = [&](int64_t c, auto words) {
    for (int64_t t = 0; t < whole; t += kSide) {
      __m512i pairs[kSide];
      for (int64_t i = 0; i < kSide; ++i) pairs[i] = words(t + i);
      turn(pairs);
      uint16_t* out = keys + t * key + c * kSide;
      for (int64_t i = 0; i < kSide; ++i, out += kPair) _mm512_storeu_si512(out, pairs[i]);
    }
  };
  for (int64_t c = 0; c < shape.nope; c += kPair) {
    make(k_b, c, kPair);
    put_keys(c, [&](int64_t t) {
      return to_bf16(_mm512_loadu_ps(work + t * kPair), _mm512_loadu_ps(work + t * kPair + kSide));
    });
  }
  for (int64_t c = 0; c < shape.rope; c += kPair) {
    put_keys(shape.nope + c, [&](int64_t t) {
      return _mm512_loadu_si512(pages[t / kExpandedRows] + t % kExpandedRows * stride + shape.rank + c);
    });
  }
  // Behind the last row may lie no number at all, and a weight of zero would not be enough; queries see pairs
  // of up to 32 rows.
  const auto row = [&](int64_t t, int64_t c) {
    return t < count ? _mm512_loadu_ps(work + t * kPair + c) : _mm512_setzero_ps();
  };
  for (int64_t first = 0; first < shape.value; first += kPair) {
    const int64_t columns = shape.value - first < kPair ? shape.value - first : kPair;
    make(v_b, first, columns);
    for (int64_t c = 0; c < columns; c += kSide) {
      uint16_t* out = values + (first + c) * kExpandedKeys;
      for (int64_t t = 0; t < round_up(count, kPair); t += 2, out += kPair)
        _mm512_storeu_si512(out, in_turns(to_bf16(row(t, c), row(t + 1, c))));
    }
  }
}

/// 2^x for x <= 0, within 2^-18: a polynomial for the fraction (least squares, weighted to be as good
/// everywhere), what bfloat16 keeps of it is 2^-9.
inline __m512 power_of_two(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.0135341676f);
  for (const float coefficient : {0.0520114612f, 0.241442757f, 0.693003835f, 1.0f})
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(coefficient));
  return _mm512_scalef_ps(p, x);
}

/// The largest of the first `count` scores; at least one.
inline float largest_of_scores(const float* scores, int64_t count) {
  __m512 most = _mm512_set1_ps(-__builtin_inff());
  int64_t t = 0;
  for (; t + kSide <= count; t += kSide) most = _mm512_max_ps(_mm512_loadu_ps(scores + t), most);
  const auto rest = static_cast<__mmask16>((1u << (count - t)) - 1);
  most = _mm512_mask_max_ps(most, rest, _mm512_maskz_loadu_ps(rest, scores + t), most);
  return _mm512_reduce_max_ps(most);
}

/// 2^(scores * scale - largest) as bfloat16, zeroes from count to `end`, a multiple of 32; what the rounded
/// ones add up to.
inline float weights_of(const float* scores, int64_t count, int64_t end, float scale, float largest,
                        uint16_t* weights) {
  const __m512 times = _mm512_set1_ps(scale), less = _mm512_set1_ps(largest);
  __m512 sum = _mm512_setzero_ps();
  const auto weight = [&](int64_t t) {
    return power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(scores + t), times, less));
  };
  for (int64_t t = 0; t < end; t += kPair) {
    __m512i rounded = _mm512_setzero_si512();
    if (t < count) {
      rounded = to_bf16(weight(t), weight(t + kSide));
      if (t + kPair > count) rounded = _mm512_maskz_mov_epi16((1u << (count - t)) - 1, rounded);
    }
    _mm512_storeu_si512(weights + t, rounded);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-65536))));
  }
  return _mm512_reduce_add_ps(sum);
}

void attend(const uint16_t* queries, const int32_t* counts, int64_t rows, const uint16_t* keys,
            const uint16_t* values, ExpandedShape shape, float scale, float* work, float* largest,
            float* total, float* sums) {
  constexpr float kLog2E = 1.44269504f;
  const int64_t end = round_up(largest_of(counts, rows), kPair), whole = round_up(rows, kSide);
  if (end == 0) return;
  auto* weights = reinterpret_cast<uint16_t*>(work + kExpandedRows * std::max(kExpandedKeys, shape.value));
  multiply(queries, shape.key(), whole, keys, shape.key() * kSide, shape.key(), end, work, kExpandedKeys);
  float before[kExpandedRows];
  for (int64_t i = 0; i < rows; ++i) {
    before[i] = largest[i];
    if (counts[i] == 0) continue;
    const float most = largest_of_scores(work + i * kExpandedKeys, counts[i]) * (scale * kLog2E);
    largest[i] = most > before[i] ? most : before[i];
  }
  for (int64_t i = 0; i < rows; i += kSide) {
    const auto there = static_cast<__mmask16>(rows - i >= kSide ? 0xFFFF : (1u << (rows - i)) - 1);
    const __m512 old = _mm512_maskz_loadu_ps(there, before + i),
                 now = _mm512_maskz_loadu_ps(there, largest + i);
    const __mmask16 begun = _mm512_cmp_ps_mask(old, _mm512_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ);
    _mm512_mask_storeu_ps(before + i, there,
                          _mm512_maskz_mov_ps(begun, power_of_two(_mm512_sub_ps(old, now))));
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float sum = weights_of(work + i * kExpandedKeys, counts[i], end, scale * kLog2E, largest[i],
                                 weights + i * kExpandedKeys);
    total[i] = total[i] * before[i] + sum;
  }
  // Sums go on in the product, of what is left of those before the largest score rose: all of most. What lies
  // there before the first keys may be no number at all.
  bool anew = true;
  for (int64_t i = 0; i < rows; ++i) anew = anew && before[i] == 0;
  for (int64_t i = 0; i < rows && !anew; ++i) {
    if (before[i] == 1) continue;
    const __m512 keep = _mm512_set1_ps(before[i]);
    for (float* sum = sums + i * shape.value; sum < sums + (i + 1) * shape.value; sum += kSide) {
      const __m512 kept = before[i] == 0 ? _mm512_setzero_ps() : _mm512_mul_ps(_mm512_loadu_ps(sum), keep);
      _mm512_storeu_ps(sum, kept);
    }
  }
  (anew ? multiply : multiply_adding)(weights, kExpandedKeys, whole, values, kExpandedKeys * kSide, end,
                                      shape.value, sums, shape.value);
}
