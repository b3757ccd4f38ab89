// Attention over a chunk in registers: the body of the tiers without matrix tiles. Include it inside an
// anonymous namespace only, after a tier's Lanes, exp.h, attend_softmax.h and its Operand; the tier's table
// names its functions.
//
// What bounds it: arithmetic. A cache row of 512 + 64 halves is 1152 bytes and, with 20 heads, 43520 FLOP. So
// a tile is decoded once, and registers hold a block of kGroup queries by four rows of the tile (scores;
// vectors along the columns) or of kValueGroup queries by kValueBlock vectors of columns (values): one load
// feeds two to four multiply-adds.
//
// Operand says what the multiply-adds take: those numbers of queries and vectors; `Number`, and how many of
// them make a vector (kNumbers) and how many rows of the tile one multiply-add of the values takes (kRows),
// which load_values puts side by side; multiply_add, the Sum that it makes, how sums become scores and
// results, and where keys and weights lie. What lies ahead is asked for between multiply-adds if kAsksWithin,
// after some hundreds of them if not.

constexpr int kBlock = 4;            // rows of the tile for the scores
constexpr int64_t kRowsAtOnce = 16;  // 18 KB of bfloat16 at 512 + 64 columns

int64_t packed_floats(AttendShape shape) {
  return kQueries * (Operand::stride(shape) + Operand::kQueryFloats);
}
int64_t work_floats(AttendShape) { return kQueries * kChunkRows; }

/// The numbers of a chunk's rows, in two halves.
struct Keys {
  const Operand::Number* halves[2];
  int64_t stride;
  const Operand::Number* row(int64_t t) const { return halves[t / kHalfRows] + t % kHalfRows * stride; }
};

/// scores[i][t] = query first + i . row t for H queries and the rows [begin, end); past these come up to
/// three scores of whatever lies there.
template <int H>
void score(const float* packed, int64_t first, const Keys& keys, const float* tile, AttendShape shape,
           int64_t begin, int64_t end, Ahead& ahead, int64_t bytes_ahead, float* scores) {
  const int64_t stride = Operand::numbers(shape);
  const auto* q = reinterpret_cast<const Operand::Number*>(packed) + first * stride;
  for (int64_t t = begin; t < end; t += kBlock) {
    Operand::Sum sums[H][kBlock];
    for (int h = 0; h < H; ++h) {
      for (int n = 0; n < kBlock; ++n) sums[h][n] = Operand::nothing();
    }
    const Operand::Number* rows = keys.row(t);
    for (int64_t i = 0; i < stride; i += Operand::kNumbers) {
      Operand::Vector k[kBlock];
      for (int n = 0; n < kBlock; ++n) k[n] = Operand::load(rows + n * stride + i);
      if (Operand::kAsksWithin && i % 64 == 0) ask_ahead(ahead, 64);
      for (int h = 0; h < H; ++h) {
        const Operand::Vector x = Operand::load(q + h * stride + i);
        for (int n = 0; n < kBlock; ++n) sums[h][n] = Operand::multiply_add(x, k[n], sums[h][n]);
      }
    }
    ask_ahead(ahead, Operand::kAsksWithin ? bytes_ahead - stride : bytes_ahead);
    for (int h = 0; h < H; ++h)
      Operand::store_scores(sums[h], packed, first + h, tile, t, shape, scores + h * kChunkRows + t);
  }
}

/// sums[i] = N vectors of the values' columns from c on, weighted, for H queries. `count` rows, in steps of
/// Operand::kRows.
template <int H, int N>
void weigh(const Operand::Number* weights, const Keys& keys, int64_t c, int64_t count, Ahead& ahead,
           int64_t bytes_ahead, float* sums, int64_t sums_stride) {
  Operand::Sum acc[H][N];
  for (int h = 0; h < H; ++h) {
    for (int n = 0; n < N; ++n) acc[h][n] = Operand::nothing();
  }
  for (int64_t begin = 0; begin < count; begin += kHalfRows) {
    const int64_t end = std::min(count, begin + kHalfRows);
    const Operand::Number* values = keys.row(begin) + c;
    for (int64_t t = begin; t < end; t += Operand::kRows) {
      Operand::Vector v[N];
      Operand::load_values(values, keys.stride, v);
      values += Operand::kRows * keys.stride;
      if (Operand::kAsksWithin && t % 16 == 0) ask_ahead(ahead, bytes_ahead * 16 / kChunkRows);
      for (int h = 0; h < H; ++h) {
        const Operand::Vector w = Operand::repeat(weights + h * Operand::kWeightStride + t);
        for (int n = 0; n < N; ++n) acc[h][n] = Operand::multiply_add(w, v[n], acc[h][n]);
      }
    }
  }
  if (!Operand::kAsksWithin) ask_ahead(ahead, bytes_ahead);
  for (int h = 0; h < H; ++h)
    Operand::store_sums(acc[h], weights + h * Operand::kWeightStride, sums + h * sums_stride);
}

void attend_keys(const float* packed, const int32_t* counts, int64_t queries, const Keys& keys,
                 const float* tile, AttendShape shape, float scale, float* work, Ahead ahead,
                 ChunkResult result) {
  using L = Lanes;
  using Number = Operand::Number;
  const int64_t rank = sums_stride(shape);
  // Weights go as far as any query's: the values may be weighted in other groups than the scores.
  const int64_t end = round_up(largest_of(counts, queries), 32);
  // What the next chunk reads, half of it beside this one's scores and half beside its values.
  constexpr int64_t kColumns = Operand::kValueBlock * L::kWidth;
  const auto groups_of = [&](int64_t most) { return (queries + most - 1) / most; };
  const int64_t half = ahead.bytes() / 2;
  constexpr int64_t kLine = Operand::kAsksWithin ? 0 : 64;  // parts of lines are rounded up
  const int64_t beside_scores = half * kBlock / (kChunkRows * groups_of(Operand::kGroup)) + kLine;
  const int64_t beside_values = half * kColumns / (rank * groups_of(Operand::kValueGroup)) + kLine;
  // Some rows outside, queries inside: the rows stay in the first cache.
  for (int64_t t = 0; t < end; t += kRowsAtOnce) {
    in_groups(queries, Operand::kGroup, [&](int64_t first, int64_t size) {
      const int64_t count = largest_of(counts + first, size);
      with_size<Operand::kGroup>(size, [&](auto n) {
        score<decltype(n)::value>(packed, first, keys, tile, shape, t, std::min(t + kRowsAtOnce, count),
                                  ahead, beside_scores, work + first * kChunkRows);
      });
    });
  }
  for (int64_t i = 0; i < queries; ++i) {
    softmax_chunk(work + i * kChunkRows, counts[i], end, scale, result.largest + i, result.total + i);
    Operand::make_weights(work + i * kChunkRows, end, tile, shape, result.total + i);
  }
  // Columns outside, queries inside: the block of columns stays in the first cache.
  const auto* weights = reinterpret_cast<const Number*>(work);
  const auto weigh_columns = [&](int64_t c, auto vectors) {
    in_groups(queries, Operand::kValueGroup, [&](int64_t first, int64_t size) {
      const int64_t count = largest_of(counts + first, size);
      with_size<Operand::kValueGroup>(size, [&](auto n) {
        weigh<decltype(n)::value, decltype(vectors)::value>(weights + first * Operand::kWeightStride, keys, c,
                                                            count, ahead, beside_values,
                                                            result.sums + first * rank + c, rank);
      });
    });
  };
  constexpr int kBlockOf16 = 16 / L::kWidth;  // to which sums_stride rounds up
  int64_t c = 0;
  for (; c + kColumns <= rank; c += kColumns)
    weigh_columns(c, std::integral_constant<int, Operand::kValueBlock>{});
  for (; c < rank; c += 16) weigh_columns(c, std::integral_constant<int, kBlockOf16>{});
}

void attend(const float* packed, const int32_t* counts, int64_t queries, const float* tile, AttendShape shape,
            float scale, float* work, Ahead ahead, ChunkResult result) {
  const int64_t stride = Operand::numbers(shape);
  const Operand::Number* keys = Operand::keys(tile);
  attend_keys(packed, counts, queries, {{keys, keys + kHalfRows * stride}, stride}, tile, shape, scale, work,
              ahead, result);
}
