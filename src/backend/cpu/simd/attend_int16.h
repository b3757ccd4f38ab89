// Attention's operands in 16 bits, for tiers that add up pairs of such products in 32 bits quicker than those
// of bfloat16: twice the products of float32's, and a tile of half the bytes. Include it inside an anonymous
// namespace only, after a tier's Lanes, attend_softmax.h, attend_rows.h and Int16, which is what the tier's
// vectors do with numbers of 16 bits.
//
// A row (a query, a key and value of the cache) is whole numbers times its scale, which is such that their
// Euclidean norm is at most kNorm. No sum of products of a query with a key, nor of some of them, can leave
// 32 bits then (Cauchy and Schwarz), and a row of normal numbers keeps 12 bits and more of each. Weights are
// multiplied with their rows' scales first, and then made as large as the values of those rows allow.

#include "backend/cpu/simd/int16_scales.h"

struct Operand {
  using Number = int16_t;
  using Vector = Lanes::I;
  using Sum = Lanes::I;
  static constexpr int kGroup = Int16::kGroup;
  static constexpr int kValueGroup = Int16::kValueGroup, kValueBlock = 2;
  static constexpr int kNumbers = 2 * Lanes::kWidth;
  static constexpr int kRows = 2;                           // a pair
  static constexpr int64_t kWeightStride = 2 * kChunkRows;  // they lie where the scores lay
  static constexpr int64_t kQueryFloats = 1;                // its scale
  static constexpr bool kAsksWithin = Int16::kAsksWithin;

  static int64_t stride(AttendShape shape) { return numbers(shape) / 2; }
  static int64_t numbers(AttendShape shape) { return round_up(shape.width, kNumbers); }
  static const int16_t* keys(const float* tile) { return reinterpret_cast<const int16_t*>(tile); }
  /// Of a tile's rows, behind them: scales, and the largest magnitudes of their values.
  static float* scales(float* tile, AttendShape shape) { return tile + kChunkRows * stride(shape); }
  static const float* scales(const float* tile, AttendShape shape) {
    return tile + kChunkRows * stride(shape);
  }
  /// Of packed queries, behind them.
  static float* query_scales(float* packed, AttendShape shape) { return packed + kQueries * stride(shape); }

  static Sum nothing() { return Lanes::zero(); }
  static Vector load(const int16_t* at) { return Int16::load(at); }
  static Vector repeat(const int16_t* at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return Lanes::all(pair);
  }
  static Sum multiply_add(Vector a, Vector b, Sum sum) { return Int16::multiply_add(a, b, sum); }
  /// Two rows' numbers side by side, for N * kWidth columns in order: packing leaves numbers so that they
  /// come out.
  template <int N>
  static void load_values(const int16_t* rows, int64_t stride, Vector (&v)[N]) {
    const Vector row = load(rows), next = load(rows + stride);
    v[0] = Int16::low_pairs(row, next);
    if constexpr (N > 1) v[1] = Int16::high_pairs(row, next);
  }
  /// Four keys' scores.
  static void store_scores(const Sum* sums, const float* packed, int64_t query, const float* tile, int64_t t,
                           AttendShape shape, float* scores) {
    const __m128 scale = _mm_mul_ps(_mm_loadu_ps(scales(tile, shape) + t),
                                    _mm_set1_ps(packed[kQueries * stride(shape) + query]));
    _mm_storeu_ps(scores, _mm_mul_ps(_mm_cvtepi32_ps(Int16::totals(sums)), scale));
  }
  /// Weights [end] become whole numbers, in place; behind them, what one of them is worth.
  static void make_weights(float* weights, int64_t end, const float* tile, AttendShape shape, float*) {
    using L = Lanes;
    const float *scale = scales(tile, shape), *largest = scale + kChunkRows;
    L::F most = L::all_f(0), sum = L::all_f(0);
    for (int64_t t = 0; t < end; t += L::kWidth) {
      // A row that is not there has no weight, and anything for a scale.
      const L::F weight = L::load_f(weights + t);
      sum = L::add(sum, Int16::where_not_zero(weight, L::mul(weight, L::load_f(largest + t))));
      const L::F scaled = Int16::where_not_zero(weight, L::mul(weight, L::load_f(scale + t)));
      L::store_f(weights + t, scaled);
      most = L::max(scaled, most);
    }
    const float of_numbers = L::largest(most) / kLargestNumber, of_sums = L::total(sum) / kLargestSum;
    const float worth = of_numbers > of_sums ? of_numbers : of_sums;
    const L::F inverse = L::all_f(worth > 0 ? 1 / worth : 0);
    auto* out = reinterpret_cast<int16_t*>(weights);
    for (int64_t t = 0; t < end; t += kNumbers) {
      L::store(out + t, Int16::in_order(
                            numbers_of(L::load_f(weights + t), L::load_f(weights + t + L::kWidth), inverse)));
    }
    weights[kChunkRows - 1] = worth;
  }
  /// Low and high floats as whole numbers, in turns by four.
  static Vector numbers_of(Lanes::F low, Lanes::F high, Lanes::F inverse) {
    return Int16::pack(Lanes::round(Lanes::mul(low, inverse)), Lanes::round(Lanes::mul(high, inverse)));
  }
  template <int N>
  static void store_sums(const Sum (&sums)[N], const int16_t* weights, float* out) {
    const Lanes::F worth = Lanes::all_f(reinterpret_cast<const float*>(weights)[kChunkRows - 1]);
    for (int n = 0; n < N; ++n)
      Lanes::store_f(out + n * Lanes::kWidth, Lanes::mul(Lanes::to_float(sums[n]), worth));
  }
};

/// Rows that are made whole numbers together: as many as a vector has lanes.
constexpr int64_t kRowsTogether = Lanes::kWidth;

/// Sums that a row's squares go to in turns, 32 numbers together.
constexpr int kChains = 32 / Lanes::kWidth;

/// Numbers, their scales and magnitudes, and floats.
int64_t tile_floats(AttendShape shape) {
  return kChunkRows * (Operand::stride(shape) + 2) + kRowsTogether * Operand::numbers(shape);
}

inline Lanes::F sum_of(const Lanes::F (&sums)[kChains]) {
  if constexpr (kChains == 2) return Lanes::add(sums[0], sums[1]);
  return Lanes::add(Lanes::add(sums[0], sums[1]), Lanes::add(sums[kChains - 2], sums[kChains - 1]));
}

/// What one of a row's whole numbers is worth, and the largest magnitude of the first `rank` columns (or of
/// some more). The row is `count` floats, a multiple of 16 that begin at at(0), at(16), ... An infinity or a
/// NaN makes the scale one.
template <typename At>
inline float scale_of(At at, int64_t count, int64_t rank, float* largest_value) {
  using L = Lanes;
  L::F squares[kChains], most[kChains];
  for (int n = 0; n < kChains; ++n) squares[n] = most[n] = L::all_f(0);
  const auto take16 = [&](const float* from, int sum) __attribute__((always_inline)) {
    for (int n = 0; n < kChains / 2; ++n) {
      const L::F x = L::load_f(from + n * L::kWidth);
      squares[sum + n] = L::fma(x, x, squares[sum + n]);
      most[sum + n] = L::max(L::abs(x), most[sum + n]);
    }
  };
  const auto take = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
    int64_t i = from;
    for (; i + 32 <= to; i += 32) take16(at(i), 0), take16(at(i + 16), kChains / 2);
    if (i < to) take16(at(i), 0);
    L::F all = most[0];
    for (int n = 1; n < kChains; ++n) all = L::max(all, most[n]);
    return L::largest(all);
  };
  const int64_t values = round_up(rank, 16);
  *largest_value = take(0, values);
  const float largest = take(values, count);
  alignas(64) float scales[L::kWidth];
  L::store_f(scales, scales_of(L::all_f(L::total(sum_of(squares))), L::all_f(largest)));
  return scales[0];
}

template <typename At>
inline void to_numbers(At at, int64_t count, float scale, int16_t* out) {
  const Lanes::F inverse = inverse_of(scale);
  for (int64_t i = 0; i < count; i += Operand::kNumbers) {
    const float* from = at(i);
    Lanes::store(out + i,
                 Operand::numbers_of(Lanes::load_f(from), Lanes::load_f(from + Lanes::kWidth), inverse));
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
  L::F squares[R][kChains];
  L::I most[R];
  for (int r = 0; r < R; ++r) {
    most[r] = L::zero();
    for (L::F& sum : squares[r]) sum = L::all_f(0);
  }
  const auto take = [&](int64_t from, int64_t to, uint16_t * largest) __attribute__((always_inline)) {
    for (int64_t i = from; i < to; i += 32) {
      for (int r = 0; r < R; ++r) {
        const uint16_t* at = row + r * shape.width + i;
        for (int n = 0; n < 32; n += Operand::kNumbers)
          most[r] = Int16::max(most[r], L::bit_and(L::load(at + n), L::all(0x7FFF7FFF)));
        for (int n = 0; n < kChains; ++n) {
          const L::F x = L::halves(at + n * L::kWidth);
          squares[r][n] = L::fma(x, x, squares[r][n]);
        }
      }
    }
    for (int r = 0; r < R; ++r) largest[r] = Int16::largest(most[r]);
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
    Lanes::store_f(scales + begin, scales_of(Lanes::load_f(of.squares), Lanes::halves(of.number)));
    Lanes::store_f(largest + begin, Lanes::halves(of.value));
    for (t = begin; t < end; ++t) {
      const uint16_t* row = rows + t * shape.width;
      const Lanes::F inverse = inverse_of(scales[t]);
      for (int64_t i = 0; i < shape.width; i += Operand::kNumbers) {
        const Lanes::I numbers =
            Operand::numbers_of(Lanes::halves(row + i), Lanes::halves(row + i + Lanes::kWidth), inverse);
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
  const int64_t numbers = Operand::numbers(shape),
                whole = shape.width / Operand::kNumbers * Operand::kNumbers;
  for (int64_t i = 0; i < queries; ++i) {
    float tail[Operand::kNumbers] = {}, largest_value;
    for (int64_t c = whole; c < shape.width; ++c) tail[c - whole] = q[i][c];
    const auto at = [&](int64_t c) { return c < whole ? q[i] + c : tail + (c - whole); };
    const float scale = scale_of(at, numbers, shape.rank, &largest_value);
    to_numbers(at, numbers, scale, reinterpret_cast<int16_t*>(packed) + i * numbers);
    Operand::query_scales(packed, shape)[i] = scale;
  }
}
