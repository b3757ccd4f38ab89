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
  static constexpr int kValueGroup = 6, kValueBlock = 2;
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
  /// The addition in assembly: g++ would put it off, or leave copies of the sums behind.
  static Sum multiply_add(Vector a, Vector b, Sum sum) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
    return sum;
  }
  /// Two rows' numbers side by side, for 16 columns in order: store_numbers leaves them so that they come
  /// out.
  static void load_values(const int16_t* rows, int64_t stride, Vector (&v)[kValueBlock]) {
    const Vector row = load(rows), next = load(rows + stride);
    v[0] = _mm256_unpacklo_epi16(row, next), v[1] = _mm256_unpackhi_epi16(row, next);
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
    for (int64_t t = 0; t < end; t += 16) {
      const __m256i numbers = sixteen(L::load_f(weights + t), L::load_f(weights + t + 8), inverse);
      L::store(out + t, _mm256_permute4x64_epi64(numbers, 0xD8));
    }
    weights[kChunkRows - 1] = worth;
  }
  /// Low and high floats as whole numbers: the first four of both, then the others.
  static __m256i sixteen(Lanes::F low, Lanes::F high, Lanes::F inverse) {
    return _mm256_packs_epi32(Lanes::round(Lanes::mul(low, inverse)),
                              Lanes::round(Lanes::mul(high, inverse)));
  }
  static void store_sums(const Sum (&sums)[kValueBlock], const int16_t* weights, float* out) {
    const Lanes::F worth = Lanes::all_f(reinterpret_cast<const float*>(weights)[kChunkRows - 1]);
    for (int n = 0; n < kValueBlock; ++n)
      Lanes::store_f(out + n * 8, Lanes::mul(Lanes::to_float(sums[n]), worth));
  }
};

/// Rows that are made whole numbers together: as many as a vector has lanes.
constexpr int64_t kRowsTogether = 8;

/// Numbers, their scales and magnitudes, and floats.
int64_t tile_floats(AttendShape shape) {
  return kChunkRows * (Operand::stride(shape) + 2) + kRowsTogether * Operand::numbers(shape);
}

inline Lanes::F sum_of(const Lanes::F (&sums)[4]) {
  return Lanes::add(Lanes::add(sums[0], sums[1]), Lanes::add(sums[2], sums[3]));
}

/// What a row's whole numbers are worth, a lane a row: of its sum of squares and its largest magnitude.
inline Lanes::F scales_of(Lanes::F squares, Lanes::F largest) {
  using L = Lanes;
  return L::max(L::div(largest, L::all_f(kLargestNumber)), L::div(_mm256_sqrt_ps(squares), L::all_f(kNorm)));
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
  const float largest = take(values, count);
  return _mm256_cvtss_f32(scales_of(L::all_f(L::total(sum_of(squares))), L::all_f(largest)));
}

/// Numbers are multiplied with it.
inline Lanes::F inverse_of(float scale) { return Lanes::all_f(scale > 1e-36f ? 1 / scale : 0); }

template <typename At>
inline void to_numbers(At at, int64_t count, float scale, int16_t* out) {
  const Lanes::F inverse = inverse_of(scale);
  for (int64_t i = 0; i < count; i += 16) {
    const float* from = at(i);
    Lanes::store(out + i, Operand::sixteen(Lanes::load_f(from), Lanes::load_f(from + 8), inverse));
  }
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

/// The largest of 16 whole numbers without a sign.
inline uint16_t largest16(Lanes::I a) {
  __m128i half = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  half = _mm_xor_si128(half, _mm_set1_epi16(-1));  // there is a search for the smallest only
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(half)));
}

/// Of rows of halves: the sums of their squares, and the largest magnitudes of values and of all numbers, as
/// halves.
struct OfHalves {
  float squares[kRowsTogether];
  uint16_t value[kRowsTogether], number[kRowsTogether];
};

/// What scale_of finds, for R rows from row t on: the same sums in the same order, and magnitudes compared as
/// they are, because a larger half is a larger whole number. R rows, or additions would wait for each other.
template <int R>
inline void of_halves(const uint16_t* row, AttendShape shape, int64_t t, OfHalves& result) {
  using L = Lanes;
  L::F squares[R][4];
  L::I most[R];
  for (int r = 0; r < R; ++r) {
    most[r] = L::zero();
    for (L::F& sum : squares[r]) sum = L::all_f(0);
  }
  const auto take = [&](int64_t from, int64_t to, uint16_t * largest) __attribute__((always_inline)) {
    for (int64_t i = from; i < to; i += 32) {
      for (int r = 0; r < R; ++r) {
        const uint16_t* at = row + r * shape.width + i;
        for (int n = 0; n < 2; ++n) {
          const L::I magnitudes = L::bit_and(L::load(at + n * 16), _mm256_set1_epi16(0x7FFF));
          most[r] = L::now(_mm256_max_epu16(most[r], magnitudes));
        }
        for (int n = 0; n < 4; ++n) {
          const L::F x = L::halves(at + n * 8);
          squares[r][n] = L::fma(x, x, squares[r][n]);
        }
      }
    }
    for (int r = 0; r < R; ++r) largest[r] = largest16(most[r]);
  };
  take(0, shape.rank, result.value + t);
  take(shape.rank, shape.width, result.number + t);
  for (int r = 0; r < R; ++r) result.squares[t + r] = L::total(sum_of(squares[r]));
}

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  if (shape.width % 32 != 0 || shape.rank % 32 != 0) {
    const auto row = [&](int64_t t, float* out) {
      decode_halves(rows + t * shape.width, shape.width, out, Operand::numbers(shape));
    };
    return decode(row, shape, first, count, tile);
  }
  float *scales = Operand::scales(tile, shape) + first, *largest = scales + kChunkRows;
  int16_t* out = reinterpret_cast<int16_t*>(tile) + first * shape.width;
  for (int64_t begin = 0; begin < count; begin += kRowsTogether) {
    const int64_t end = std::min(count, begin + kRowsTogether);
    OfHalves of{};
    int64_t t = begin;
    for (; t + 2 <= end; t += 2) of_halves<2>(rows + t * shape.width, shape, t - begin, of);
    if (t < end) of_halves<1>(rows + t * shape.width, shape, t - begin, of);
    Lanes::store_f(scales + begin, scales_of(_mm256_loadu_ps(of.squares), Lanes::halves(of.number)));
    Lanes::store_f(largest + begin, Lanes::halves(of.value));
    for (t = begin; t < end; ++t) {
      const uint16_t* row = rows + t * shape.width;
      const Lanes::F inverse = inverse_of(scales[t]);
      for (int64_t i = 0; i < shape.width; i += 16) {
        const Lanes::I numbers =
            Operand::sixteen(Lanes::halves(row + i), Lanes::halves(row + i + 8), inverse);
        Lanes::store(out + t * shape.width + i, numbers);
      }
    }
  }
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
