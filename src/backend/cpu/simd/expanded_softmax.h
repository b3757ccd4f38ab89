// Scores of attention over expanded keys to weights, in portions between which other work can stand. Include
// it inside an anonymous namespace only, after immintrin.h and expanded.h.

#include "backend/cpu/simd/power_of_two_avx512.h"

constexpr int64_t kSide = 16;         // columns of a right side's panel
constexpr int64_t kPair = 2 * kSide;  // its numbers of one pair of inner indices

/// The low vector's numbers before the high one's.
inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// The largest of the first `count` scores; at least one.
inline float largest_of_scores(const float* scores, int64_t count) {
  __m512 most = _mm512_set1_ps(-__builtin_inff());
  int64_t t = 0;
  for (; t + kSide <= count; t += kSide) most = _mm512_max_ps(_mm512_loadu_ps(scores + t), most);
  const auto rest = static_cast<__mmask16>((1u << (count - t)) - 1);
  most = _mm512_mask_max_ps(most, rest, _mm512_maskz_loadu_ps(rest, scores + t), most);
  return _mm512_reduce_max_ps(most);
}

/// Rows of scores [kExpandedKeys] to weights in bfloat16, a portion at a time, so that products can stand
/// between: 2^(score * scale - largest), zeroes from a row's count to `end`, a multiple of 32.
struct Softmax {
  const float* scores;
  const int32_t* counts;
  int64_t rows, end;
  float scale;  // of scores to powers of two
  uint16_t* weights;
  float *largest, *total;
  float* kept;  // what the rows' new largest leaves of earlier sums: 0 where there were none

  int64_t row = 0, at = -1;  // the next portion's
  __m512 sum = _mm512_setzero_ps();

  /// A row's largest score, or the next 64 of its weights.
  __attribute__((noinline)) void next() {
    if (row == rows) return;
    if (at < 0) {
      begin_row();
      return;
    }
    const __m512 times = _mm512_set1_ps(scale), less = _mm512_set1_ps(largest[row]);
    const auto weight = [&](int64_t t) {
      return power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(scores + row * kExpandedKeys + t), times, less));
    };
    const int64_t count = counts[row], last = at + 64 < end ? at + 64 : end;
    for (; at < last; at += kPair) {
      __m512i rounded = _mm512_setzero_si512();
      if (at < count) {
        rounded = to_bf16(weight(at), weight(at + kSide));
        if (at + kPair > count) rounded = _mm512_maskz_mov_epi16((1u << (count - at)) - 1, rounded);
      }
      _mm512_storeu_si512(weights + row * kExpandedKeys + at, rounded);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-65536))));
    }
    if (at < end) return;
    total[row] = total[row] * kept[row] + _mm512_reduce_add_ps(sum);  // what the rounded ones add up to
    ++row;
    at = -1;
  }
  void finish() {
    while (row < rows) next();
  }

 private:
  void begin_row() {
    const float before = largest[row];
    if (counts[row] > 0) {
      const float most = largest_of_scores(scores + row * kExpandedKeys, counts[row]) * scale;
      if (most > before) largest[row] = most;
    }
    const bool begun = before != -__builtin_inff();
    kept[row] = !begun ? 0.0f : _mm512_cvtss_f32(power_of_two(_mm512_set1_ps(before - largest[row])));
    sum = _mm512_setzero_ps();
    at = 0;
  }
};
