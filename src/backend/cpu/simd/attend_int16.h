// Attention's operands in 16 bits, for tiers that add up pairs of such products in 32 bits but know no
// bfloat16: twice the products of float32's, and a tile of half the bytes. Include it inside an anonymous
// namespace only, after AVX2's Lanes, attend_softmax.h and attend_rows.h.
//
// A row (a query, a key and value of the cache) is whole numbers times its scale, which is such that their
// Euclidean norm is at most kNorm. No sum of products of a query with a key, nor of some of them, can leave
// 32 bits then (Cauchy and Schwarz), and a row of normal numbers keeps 12 bits and more of each. Weights are
// multiplied with their rows' scales first, and then made as large as the values of those rows allow.

constexpr float kNorm = 46000;           // kNorm * kNorm < 2^31, with room for rounding
constexpr float kLargestNumber = 32767;  // of 16 bits
constexpr float kLargestSum = 2.1e9f;    // of 32 bits, with room for rounding 128 weights

struct Operand {
  using Number = int16_t;
  using Vector = __m256i;
  using Sum = __m256i;
  static constexpr int kGroup = 2;
  static constexpr int kNumbers = 16;
  static constexpr int kRows = 2;                           // a pair
  static constexpr int64_t kWeightStride = 2 * kChunkRows;  // they lie where the scores lay
  static constexpr int64_t kQueryFloats = 1;                // its scale

  static int64_t stride(AttendShape shape) { return numbers(shape) / 2; }
  static int64_t numbers(AttendShape shape) { return round_up(shape.width, 16); }
  static const int16_t* keys(const float* tile) { return reinterpret_cast<const int16_t*>(tile); }
  /// Of a tile's rows, behind them: scales, and the largest magnitudes of their values.
  static float* scales(float* tile, AttendShape shape) { return tile + kChunkRows * stride(shape); }
  static const float* scales(const float* tile, AttendShape shape) {
    return tile + kChunkRows * stride(shape);
  }
  /// Of packed queries, behind them.
  static float* query_scales(float* packed, AttendShape shape) { return packed + kQueries * stride(shape); }

  static Sum nothing() { return _mm256_setzero_si256(); }
  /// Held in a register (lanes_avx2.h says why).
  static Vector load(const int16_t* at) {
    return Lanes::now(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static Vector repeat(const int16_t* at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return _mm256_set1_epi32(pair);
  }
  static Sum multiply_add(Vector a, Vector b, Sum sum) {
    return Lanes::now(_mm256_add_epi32(sum, _mm256_madd_epi16(a, b)));
  }
  /// Two rows' numbers side by side, for N * 8 columns. Of 16 columns one vector has 0 to 3 and 8 to 11, the
  /// next one the others; store_sums sets that right.
  template <int N>
  static void load_values(const int16_t* rows, int64_t stride, Vector (&v)[N]) {
    if constexpr (N == 1) {
      const auto eight = [](const int16_t* at) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      };
      const __m128i row = eight(rows), next = eight(rows + stride);
      v[0] = _mm256_set_m128i(_mm_unpackhi_epi16(row, next), _mm_unpacklo_epi16(row, next));
    } else {
      for (int n = 0; n < N; n += 2) {
        const Vector row = load(rows + n * 8), next = load(rows + stride + n * 8);
        v[n] = _mm256_unpacklo_epi16(row, next), v[n + 1] = _mm256_unpackhi_epi16(row, next);
      }
    }
  }
  /// Four keys' scores.
  static void store_scores(const Sum* sums, const float* packed, int64_t query, const float* tile, int64_t t,
                           AttendShape shape, float* scores) {
    const __m256i pairs =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    const __m128i totals = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128 scale = _mm_mul_ps(_mm_loadu_ps(scales(tile, shape) + t),
                                    _mm_set1_ps(packed[kQueries * stride(shape) + query]));
    _mm_storeu_ps(scores, _mm_mul_ps(_mm_cvtepi32_ps(totals), scale));
  }
  /// Weights [end] become whole numbers, in place; behind them, what one of them is worth.
  static void make_weights(float* weights, int64_t end, const float* tile, AttendShape shape, float*) {
    using L = Lanes;
    const float *scale = scales(tile, shape), *largest = scale + kChunkRows;
    L::F most = L::all_f(0), sum = L::all_f(0);
    for (int64_t t = 0; t < end; t += L::kWidth) {
      // A row that is not there has no weight, and anything for a scale.
      const L::F weight = L::load_f(weights + t);
      const L::F there = _mm256_cmp_ps(weight, L::all_f(0), _CMP_NEQ_UQ);
      sum = L::add(sum, _mm256_and_ps(there, L::mul(weight, L::load_f(largest + t))));
      const L::F scaled = _mm256_and_ps(there, L::mul(weight, L::load_f(scale + t)));
      L::store_f(weights + t, scaled);
      most = L::max(scaled, most);
    }
    const float of_numbers = L::largest(most) / kLargestNumber, of_sums = L::total(sum) / kLargestSum;
    const float worth = of_numbers > of_sums ? of_numbers : of_sums;
    const L::F inverse = L::all_f(worth > 0 ? 1 / worth : 0);
    auto* out = reinterpret_cast<int16_t*>(weights);
    for (int64_t t = 0; t < end; t += 16) store_numbers(weights + t, inverse, out + t);
    weights[kChunkRows - 1] = worth;
  }
  /// 16 numbers.
  static void store_numbers(const float* from, Lanes::F inverse, int16_t* to) {
    const __m256i low = Lanes::round(Lanes::mul(Lanes::load_f(from), inverse));
    const __m256i high = Lanes::round(Lanes::mul(Lanes::load_f(from + 8), inverse));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
  }
  template <int N>
  static void store_sums(const Sum (&sums)[N], const int16_t* weights, float* out) {
    const Lanes::F worth = Lanes::all_f(reinterpret_cast<const float*>(weights)[kChunkRows - 1]);
    const auto store = [&](Sum sum, int n) {
      Lanes::store_f(out + n * 8, Lanes::mul(Lanes::to_float(sum), worth));
    };
    if constexpr (N == 1) {
      store(sums[0], 0);
    } else {
      for (int n = 0; n < N; n += 2) {
        store(_mm256_permute2x128_si256(sums[n], sums[n + 1], 0x20), n);
        store(_mm256_permute2x128_si256(sums[n], sums[n + 1], 0x31), n + 1);
      }
    }
  }
};

/// Rows of floats on their way to whole numbers.
constexpr int64_t kRowsTogether = 8;

/// Numbers, their scales and magnitudes, and floats.
int64_t tile_floats(AttendShape shape) {
  return kChunkRows * (Operand::stride(shape) + 2) + kRowsTogether * Operand::numbers(shape);
}

/// What one of a row's whole numbers is worth, and the largest magnitude of the first `rank` columns (or of
/// some more). The row is `count` floats, a multiple of 16 that begin at at(0), at(16), ... An infinity or a
/// NaN makes the scale one.
template <typename At>
inline float scale_of(At at, int64_t count, int64_t rank, float* largest_value) {
  using L = Lanes;
  L::F squares[4], most[4];
  for (int n = 0; n < 4; ++n) squares[n] = most[n] = L::all_f(0);
  const auto take16 = [&](const float* from, int sum) __attribute__((always_inline)) {
    for (int n = 0; n < 2; ++n) {
      const L::F x = L::load_f(from + n * 8);
      squares[sum + n] = L::fma(x, x, squares[sum + n]);
      most[sum + n] = L::max(L::abs(x), most[sum + n]);
    }
  };
  const auto take = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
    int64_t i = from;
    for (; i + 32 <= to; i += 32) take16(at(i), 0), take16(at(i + 16), 2);
    if (i < to) take16(at(i), 0);
    return L::largest(L::max(L::max(most[0], most[1]), L::max(most[2], most[3])));
  };
  const int64_t values = round_up(rank, 16);
  *largest_value = take(0, values);
  const float of_numbers = take(values, count) / kLargestNumber;
  const L::F sum = L::add(L::add(squares[0], squares[1]), L::add(squares[2], squares[3]));
  const float of_norm = __builtin_sqrtf(L::total(sum)) / kNorm;
  return of_numbers > of_norm ? of_numbers : of_norm;
}

template <typename At>
inline void to_numbers(At at, int64_t count, float scale, int16_t* out) {
  const Lanes::F inverse = Lanes::all_f(scale > 1e-36f ? 1 / scale : 0);
  for (int64_t i = 0; i < count; i += 16) Operand::store_numbers(at(i), inverse, out + i);
}

/// row(t, out): row t as floats, filled up with zeroes. Some rows at once: nobody waits for a scale.
template <typename Row>
void decode(Row row, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const int64_t numbers = Operand::numbers(shape);
  float *scales = Operand::scales(tile, shape) + first, *largest = scales + kChunkRows;
  float* floats = Operand::scales(tile, shape) + 2 * kChunkRows;
  int16_t* out = reinterpret_cast<int16_t*>(tile) + first * numbers;
  const auto row_at = [=](int64_t index) { return [=](int64_t i) { return floats + index * numbers + i; }; };
  for (int64_t begin = 0; begin < count; begin += kRowsTogether) {
    const int64_t end = std::min(count, begin + kRowsTogether);
    for (int64_t t = begin; t < end; ++t) {
      row(t, floats + (t - begin) * numbers);
      scales[t] = scale_of(row_at(t - begin), numbers, shape.rank, largest + t);
    }
    for (int64_t t = begin; t < end; ++t)
      to_numbers(row_at(t - begin), numbers, scales[t], out + t * numbers);
  }
}

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const auto row = [&](int64_t t, float* out) {
    decode_halves(rows + t * shape.width, shape.width, out, Operand::numbers(shape));
  };
  decode(row, shape, first, count, tile);
}
void decode_q8(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const auto row = [&](int64_t t, float* out) {
    decode_q8_row(rows, t, shape.width, out, Operand::numbers(shape));
  };
  decode(row, shape, first, count, tile);
}
void decode_f32(const float* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const auto row = [&](int64_t t, float* out) {
    fill_row(rows + t * shape.width, shape.width, out, Operand::numbers(shape));
  };
  decode(row, shape, first, count, tile);
}

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  const int64_t numbers = Operand::numbers(shape), whole = shape.width / 16 * 16;
  for (int64_t i = 0; i < queries; ++i) {
    float tail[16] = {}, largest_value;
    for (int64_t c = whole; c < shape.width; ++c) tail[c - whole] = q[i][c];
    const auto at = [&](int64_t c) { return c < whole ? q[i] + c : tail; };
    const float scale = scale_of(at, numbers, shape.rank, &largest_value);
    to_numbers(at, numbers, scale, reinterpret_cast<int16_t*>(packed) + i * numbers);
    Operand::query_scales(packed, shape)[i] = scale;
  }
}
