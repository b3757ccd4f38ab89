// The attention kernels of the tier amx: matrix tiles of bfloat16 pairs, sums in float32.
//
// A tile register holds 16 rows of 64 bytes. Scores are computed as their transpose, rows of the chunk times
// queries: so the keys are read as they lie, and only the queries, packed once for all chunks, stand column
// by column. Their softmax goes by lanes, a query each, and leaves the weights as rows of queries. The values
// are pairs of rows: decoding makes them, or, where a chunk stays where it lies, each call does, 32 columns
// at a time beside the products of the 32 before, which the first-level cache keeps.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_softmax.h"
// Its tile too.
constexpr bool kValuesInPairs = true;
#include "backend/cpu/simd/attend_bf16.h"
#include "backend/cpu/simd/power_of_two_avx512.h"
#include "backend/cpu/simd/tile_config.h"
#include "backend/cpu/simd/turn_avx512.h"

constexpr int64_t kSide = 16;                              // rows of a tile register, and 32-bit columns
constexpr int64_t kStep = 2 * kSide;                       // numbers that a product sums
constexpr int64_t kTileBytes = 64;                         // of a row of a tile register
constexpr int64_t kWords = kSide * kSide;                  // of a tile register
constexpr int64_t kPairNumbers = 2 * kStep;                // of a pair of rows, 32 columns
constexpr int64_t kPairs = kChunkRows / 2 * kPairNumbers;  // numbers of a chunk's, 32 columns
/// Scores of 16 queries, [kChunkRows][16], and as many weights, [kChunkRows / 32][16][32].
constexpr int64_t kBlock = kChunkRows * kSide;

/// out[j][i] = in[i][j], 16 by 16 words; strides in words.
void transpose(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  __m512i rows[kSide];
  for (int64_t i = 0; i < kSide; ++i) rows[i] = _mm512_loadu_si512(in + i * in_stride);
  turn(rows);
  for (int64_t i = 0; i < kSide; ++i) _mm512_storeu_si512(out + i * out_stride, rows[i]);
}

/// [kQueries / 16][width / 32][16 pairs of numbers][16 queries], in words.
int64_t packed_floats(AttendShape shape) { return kQueries * key_stride(shape) / 2; }
/// Scores in float32, weights in bfloat16, and pairs of values, twice.
int64_t work_floats(AttendShape) { return (kQueries / kSide * (2 * kBlock + kBlock) + 2 * kPairs) / 2; }

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  float block[kSide * kSide];
  for (int64_t first = 0; first < queries; first += kSide) {
    for (int64_t c = 0; c < key_stride(shape); c += kStep, packed += kSide * kSide) {
      for (int64_t i = 0; i < kSide; ++i) {
        const float* row = first + i < queries ? q[first + i] : nullptr;
        _mm512_storeu_si512(block + i * kSide, to_bf16(columns_of(row, c, shape.width),
                                                       columns_of(row, c + kSide, shape.width)));
      }
      transpose(block, kSide, packed, kSide);
    }
  }
}

// Tiles 0 to 3 are sums, 4 and 5 left sides, 6 and 7 right sides.

/// Scores with one block of queries or with two, of as many rows of the chunk at once as make four sums: a
/// product waits for the one before it that adds to the same. scores[row][query], those of the second block
/// kBlock further; `rows` may be 32 of 64.
template <bool two, typename Ask>
void score(const float* packed, const uint16_t* keys, int64_t stride, int64_t rows, float* scores, Ask ask) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(uint16_t));
  const float* other = packed + stride / kStep * kSide * kSide;
  const bool four = two || rows > kStep;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t c = 0; c < stride; c += kStep, packed += kSide * kSide, other += kSide * kSide) {
    ask();
    _tile_loadd(4, keys + c, bytes);
    _tile_loadd(5, keys + kSide * stride + c, bytes);
    _tile_loadd(6, packed, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (two) {
      _tile_loadd(7, other, kTileBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    } else if (four) {
      _tile_loadd(4, keys + 2 * kSide * stride + c, bytes);
      _tile_loadd(5, keys + 3 * kSide * stride + c, bytes);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  _tile_stored(0, scores, kTileBytes);
  _tile_stored(1, scores + kWords, kTileBytes);
  if (!four) return;
  scores += two ? kBlock : 2 * kWords;
  _tile_stored(2, scores, kTileBytes);
  _tile_stored(3, scores + kWords, kTileBytes);
}

/// Scores of 16 queries, [count][16], to their weights e^(scale * score - largest), [count / 32][16][32]:
/// zeroes from a query's count on. The totals are the rounded ones'.
template <typename Ask>
void softmax(const float* scores, __m512i counts, int64_t count, float scale, uint16_t* weights,
             float* largest, float* total, Ask ask) {
  const auto seen = [&](int64_t t) {
    return _mm512_cmplt_epi32_mask(_mm512_set1_epi32(static_cast<int32_t>(t)), counts);
  };
  constexpr int kAtOnce = 4;  // maxima that do not wait for each other
  __m512 most[kAtOnce];
  for (__m512& m : most) m = _mm512_set1_ps(-__builtin_inff());
  for (int64_t t = 0; t < count; t += kAtOnce) {
    for (int i = 0; i < kAtOnce; ++i) {
      const __m512 row = _mm512_loadu_ps(scores + (t + i) * kSide);
      most[i] = _mm512_mask_max_ps(most[i], seen(t + i), row, most[i]);
    }
  }
  const __m512 top = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
  _mm512_storeu_ps(largest, _mm512_mul_ps(top, _mm512_set1_ps(scale)));
  constexpr float kLog2OfE = 1.44269504f;
  const __m512 times = _mm512_set1_ps(scale * kLog2OfE), less = _mm512_mul_ps(top, times);
  const auto weight = [&](int64_t t) {
    const __m512 power = _mm512_fmsub_ps(_mm512_loadu_ps(scores + t * kSide), times, less);
    return _mm512_maskz_mov_ps(seen(t), power_of_two(power));
  };
  __m512 sum = _mm512_setzero_ps();
  for (int64_t t = 0; t < count; t += kStep, weights += kSide * kStep) {
    ask();
    __m512i pairs[kSide];  // of rows, lane = query
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) {
      // The numbers of the first row are the lower half of the vector, those of the second the upper one.
      const __m512i rows = to_bf16(weight(t + 2 * i), weight(t + 2 * i + 1));
      pairs[i] = pairs_of(rows, _mm512_shuffle_i64x2(rows, rows, 0x4E), false);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(pairs[i], 16)));
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(pairs[i], _mm512_set1_epi32(-65536))));
    }
    turn(pairs);
    for (int64_t i = 0; i < kSide; ++i) _mm512_storeu_si512(weights + i * kStep, pairs[i]);
  }
  _mm512_storeu_ps(total, sum);
}

/// 16 or 32 columns of the weighted values of one block of queries or of two; beside(t) is done after the
/// products of the rows [t, t + 32).
template <bool two, bool wide, typename Beside>
void weigh(const uint16_t* weights, const uint16_t* values, int64_t stride, int64_t count, float* sums,
           int64_t sums_stride, Beside beside) {
  constexpr int64_t kWord = sizeof(float);
  const int64_t pair_bytes = stride * static_cast<int64_t>(sizeof(uint16_t));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t t = 0; t < count; t += kStep, values += kSide * stride, weights += kSide * kStep) {
    _tile_loadd(4, weights, kTileBytes);
    _tile_loadd(6, values, pair_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (wide) {
      _tile_loadd(7, values + kStep, pair_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (two) {
      _tile_loadd(5, weights + kBlock, kTileBytes);
      _tile_dpbf16ps(2, 5, 6);
      if (wide) _tile_dpbf16ps(3, 5, 7);
    }
    beside(t);
  }
  _tile_stored(0, sums, sums_stride * kWord);
  if (wide) _tile_stored(1, sums + kSide, sums_stride * kWord);
  if (two) {
    _tile_stored(2, sums + kSide * sums_stride, sums_stride * kWord);
    if (wide) _tile_stored(3, sums + kSide * sums_stride + kSide, sums_stride * kWord);
  }
}

/// A chunk's rows, in two halves, and the pairs of values that decoding made of them, or null.
struct Rows {
  const uint16_t* halves[2];
  int64_t stride;
  const uint16_t* pairs;
  const uint16_t* row(int64_t t) const { return halves[t / kHalfRows] + t % kHalfRows * stride; }
};

/// Columns [c, c + 32) of the rows [t, t + 32) in pairs, [16][32 columns][2]. From the row `end` on they are
/// zeroes: weights are zero there, but a NaN would not be.
template <typename Ask>
void put_in_pairs(const Rows& rows, int64_t c, int64_t t, int64_t end, uint16_t* out, Ask ask) {
  const uint16_t* row = rows.row(t) + c;
  for (int64_t i = 0; i < kSide; ++i, t += 2, row += 2 * rows.stride, out += kPairNumbers) {
    ask();
    __m512i even = _mm512_setzero_si512(), odd = even;
    if (t < end) even = _mm512_loadu_si512(row);
    if (t + 1 < end) odd = _mm512_loadu_si512(row + rows.stride);
    _mm512_storeu_si512(out, pairs_of(even, odd, false));
    _mm512_storeu_si512(out + kStep, pairs_of(even, odd, true));
  }
}

void attend_rows(const float* packed, const int32_t* counts, int64_t queries, const Rows& rows,
                 AttendShape shape, float scale, float* work, Ahead ahead, ChunkResult result) {
  const bool two = queries > kSide, in_place = rows.pairs == nullptr;
  const int64_t rank = sums_stride(shape);
  const int64_t end = largest_of(counts, queries), count = round_up(end, kStep);
  auto* weights = reinterpret_cast<uint16_t*>(work + kQueries / kSide * kBlock);
  uint16_t* const own_pairs = weights + kQueries / kSide * kBlock;
  // What lies ahead is asked for a few lines at a time: what waits for memory leaves the second-level cache
  // less room to answer. As much of it beside each part as that takes of the time; a line beside every pair.
  constexpr int64_t kPercentBesideScores = 38, kPercentBesideSoftmax = 18;
  const int64_t percent = ahead.bytes() / 100;
  const int64_t at_once = two ? kStep : 2 * kStep;
  const int64_t steps = (count + at_once - 1) / at_once * (rows.stride / kStep);
  const auto ask_beside_scores = [&] { ask_ahead(ahead, percent * kPercentBesideScores / steps); };
  const int64_t parts = count / kStep * (two ? 2 : 1);
  const auto ask_beside_softmax = [&] { ask_ahead(ahead, percent * kPercentBesideSoftmax / parts); };
  const auto ask_a_line = [&] { ask_ahead(ahead, 1); };
  configure_tiles();
  for (int64_t t = 0; t < count; t += at_once) {
    if (two) {
      score<true>(packed, rows.row(t), rows.stride, kStep, work + t * kSide, ask_beside_scores);
    } else {
      score<false>(packed, rows.row(t), rows.stride, count - t, work + t * kSide, ask_beside_scores);
    }
  }
  for (int64_t i = 0; i < queries; i += kSide) {
    int32_t seen[kSide] = {};  // nothing where there is no query
    for (int64_t q = i; q < queries && q < i + kSide; ++q) seen[q - i] = counts[q];
    softmax(work + i * kChunkRows, _mm512_loadu_si512(seen), count, scale, weights + i * kChunkRows,
            result.largest + i, result.total + i, ask_beside_softmax);
  }
  const auto pairs_at = [&](int64_t c) { return own_pairs + c / kStep % 2 * kPairs; };
  const auto put = [&](int64_t c, int64_t t) {
    put_in_pairs(rows, c, t, end, pairs_at(c) + t / 2 * kPairNumbers, ask_a_line);
  };
  for (int64_t t = 0; in_place && t < count; t += kStep) put(0, t);
  const int64_t beside_columns = ahead.bytes() * kStep / rank + 64;
  for (int64_t c = 0; c < rank; c += kStep) {
    if (!in_place) ask_ahead(ahead, beside_columns);
    const auto put_next = [&](int64_t t) {
      if (in_place && c + kStep < rank) put(c + kStep, t);
    };
    const uint16_t* values = in_place ? pairs_at(c) : rows.pairs + 2 * c;
    const int64_t pairs = in_place ? kPairNumbers : pair_stride(shape);
    float* sums = result.sums + c;
    if (c + kStep <= rank) {
      two ? weigh<true, true>(weights, values, pairs, count, sums, rank, put_next)
          : weigh<false, true>(weights, values, pairs, count, sums, rank, put_next);
    } else {
      two ? weigh<true, false>(weights, values, pairs, count, sums, rank, put_next)
          : weigh<false, false>(weights, values, pairs, count, sums, rank, put_next);
    }
  }
  _tile_release();
}

void attend(const float* packed, const int32_t* counts, int64_t queries, const float* tile, AttendShape shape,
            float scale, float* work, Ahead ahead, ChunkResult result) {
  const int64_t stride = key_stride(shape);
  const auto* keys = reinterpret_cast<const uint16_t*>(tile);
  attend_rows(packed, counts, queries,
              {{keys, keys + kHalfRows * stride}, stride, keys + kChunkRows * stride}, shape, scale, work,
              ahead, result);
}

void attend_pages(const float* packed, const int32_t* counts, int64_t queries, const uint16_t* const* pages,
                  AttendShape shape, float scale, float* work, Ahead ahead, ChunkResult result) {
  attend_rows(packed, counts, queries, {{pages[0], pages[1]}, shape.width, nullptr}, shape, scale, work,
              ahead, result);
}

}  // namespace

extern const AttendKernels kAttendAmx;
const AttendKernels kAttendAmx{"amx bf16",  8,          tile_floats,   packed_floats, work_floats,
                               sums_stride, decode_f16, decode_q8,     decode_f32,    pack,
                               attend,      merge_sums, decode_bf16,   attend_pages,  kQueries,
                               true,        32,         decode_q8_keys};

}  // namespace sluice::backend::cpu
