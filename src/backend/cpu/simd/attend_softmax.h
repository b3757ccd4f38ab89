// The softmax of a chunk and what else all attention kernels share. Include it inside an anonymous namespace
// only, after a tier's Lanes and exp.h.

#include "backend/cpu/simd/groups.h"

int64_t sums_stride(AttendShape shape) { return round_up(shape.rank, 16); }

/// Scores [count] to weights e^(scale * score - *largest), and zeroes from there to `end`, a multiple of 32.
inline void softmax_chunk(float* scores, int64_t count, int64_t end, float scale, float* largest,
                          float* total) {
  using L = Lanes;
  const int64_t padded = round_up(count, L::kWidth);
  for (int64_t t = count; t < padded; ++t) scores[t] = scores[0];  // changes no maximum
  L::F most = L::all_f(-__builtin_inff());
  for (int64_t t = 0; t < padded; t += L::kWidth) {
    const L::F scaled = L::mul(L::load_f(scores + t), L::all_f(scale));
    L::store_f(scores + t, scaled);
    most = L::max(scaled, most);
  }
  *largest = L::largest(most);
  for (int64_t t = 0; t < padded; t += L::kWidth) {
    L::store_f(scores + t, exp_of(L::sub(L::load_f(scores + t), L::all_f(*largest))));
  }
  for (int64_t t = count; t < end; ++t) scores[t] = 0;
  L::F sum = L::all_f(0);
  for (int64_t t = 0; t < padded; t += L::kWidth) sum = L::add(sum, L::load_f(scores + t));
  *total = L::total(sum);
}

/// Asks for the next `bytes` of what lies ahead, into L2.
inline void ask_ahead(Ahead& ahead, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64, ahead.at += 64) {
    if (ahead.at >= ahead.end) {
      if (ahead.next == ahead.next_end) return;
      ahead = {ahead.next, ahead.next_end, nullptr, nullptr};
    }
    __builtin_prefetch(ahead.at, 0, 2);
  }
}

void merge_sums(float* out, float a, const float* sums, float b, int64_t count) {
  using L = Lanes;
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth) {
    const L::F scaled = L::mul(L::load_f(sums + i), L::all_f(b));
    L::store_f(out + i, L::fma(L::load_f(out + i), L::all_f(a), scaled));
  }
  for (; i < count; ++i) out[i] = out[i] * a + sums[i] * b;
}

/// What an Operand has whose sums are floats (attend_body.h).
struct FloatSums {
  using Sum = Lanes::F;
  static constexpr int64_t kQueryFloats = 0;  // of a packed query, beside its numbers
  static constexpr bool kAsksWithin = false;

  static Sum nothing() { return Lanes::all_f(0); }
  template <int N>
  static void store_sums(const Sum (&sums)[N], const void*, float* out) {
    for (int n = 0; n < N; ++n) Lanes::store_f(out + n * Lanes::kWidth, sums[n]);
  }
};
