// Expanded keys and values in float32, for tiers without quick products of bfloat16, and what attention over
// them shares. Include it inside an anonymous namespace only, after a tier's Lanes, exp.h and groups.h.

using L = Lanes;
using F = Lanes::F;

constexpr int64_t kSide = 16;              // columns of a right side's panel
constexpr int kParts = kSide / L::kWidth;  // vectors of these

/// kSide rows of `columns` numbers (a multiple of 4), `stride` apart: out[column][row].
inline void turn(const float* rows, int64_t stride, int64_t columns, float* out) {
  for (int64_t c = 0; c < columns; c += 4, out += 4 * kSide) {
    for (int64_t p = 0; p < kSide; p += L::kWidth) {
      L::I words[4];
      L::words_of_rows(reinterpret_cast<const uint8_t*>(rows + p * stride + c), stride * 4, words);
      for (int i = 0; i < 4; ++i) L::store(out + i * kSide + p, words[i]);
    }
  }
}

/// From [nope][kSide latents].
void k_panel(const float* numbers, int64_t panel, ExpandedShape shape, float* k_b) {
  for (int64_t c = 0; c < shape.nope; c += kSide)
    turn(numbers + c * kSide, kSide, kSide, k_b + c * shape.rank + panel * kSide * kSide);
}

/// From [rank][kSide values], which is a right side's panel.
void v_panel(const float* numbers, int64_t panel, ExpandedShape shape, float* v_b) {
  std::copy_n(numbers, shape.rank * kSide, v_b + panel * shape.rank * kSide);
}

void from_halves(const uint16_t* halves, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += L::kWidth) L::store_f(out + i, L::halves(halves + i));
}

/// ExpandedKernels::expand. make(b, c, out): column c and the kSide - 1 behind it of all rows up to `whole`,
/// times b; out[row][kSide].
template <typename Make>
inline void expand_by(Make make, const float* const* pages, int64_t stride, int64_t count, const float* k_b,
                      const float* v_b, ExpandedShape shape, float* work, float* keys, float* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key();
  for (int64_t c = 0; c < shape.nope; c += kSide) {
    make(k_b, c, work);
    for (int64_t t = 0; t < whole; t += kSide)
      turn(work + t * kSide, kSide, kSide, keys + t * key + c * kSide);
  }
  for (int64_t t = 0; t < whole; t += kSide) {
    turn(pages[t / kExpandedRows] + t % kExpandedRows * stride + shape.rank, stride, shape.rope,
         keys + t * key + shape.nope * kSide);
  }
  // Behind the last row may lie no number at all, and a weight of zero would not be enough.
  for (int64_t c = 0; c < shape.value; c += kSide) {
    float* out = values + c * kExpandedKeys;
    make(v_b, c, out);
    std::fill(out + count * kSide, out + whole * kSide, 0.0f);
  }
}

void arrange(const float* const* pages, int64_t stride, int64_t values_at, int64_t count, ExpandedShape shape,
             float* keys, float* values) {
  const int64_t whole = round_up(count, kSide), key = shape.key();
  const auto row = [&](int64_t t) { return pages[t / kExpandedRows] + t % kExpandedRows * stride; };
  for (int64_t t = 0; t < whole; t += kSide) turn(row(t), stride, key, keys + t * key);
  for (int64_t c = 0; c < shape.value; c += kSide) {
    float* out = values + c * kExpandedKeys;
    for (int64_t t = 0; t < count; ++t) std::copy_n(row(t) + values_at + c, kSide, out + t * kSide);
    std::fill(out + count * kSide, out + whole * kSide, 0.0f);
  }
}

/// A row's scores to weights e^(score * scale - largest), zeroes from `count` to `end`. Returns what the new
/// largest leaves of earlier sums: 0 where there were none.
inline float softmax(float* scores, int64_t count, int64_t end, float scale, float* largest, float* total) {
  const float before = *largest;
  const int64_t padded = round_up(count, L::kWidth);
  for (int64_t t = count; t < padded; ++t) scores[t] = scores[0];  // changes no maximum
  F most = L::all_f(-__builtin_inff());
  for (int64_t t = 0; t < padded; t += L::kWidth) {
    const F scaled = L::mul(L::load_f(scores + t), L::all_f(scale));
    L::store_f(scores + t, scaled);
    most = L::max(scaled, most);
  }
  if (const float here = L::largest(most); here > before) *largest = here;
  for (int64_t t = 0; t < padded; t += L::kWidth)
    L::store_f(scores + t, exp_of(L::sub(L::load_f(scores + t), L::all_f(*largest))));
  std::fill(scores + count, scores + end, 0.0f);
  F sum = L::all_f(0);
  for (int64_t t = 0; t < padded; t += L::kWidth) sum = L::add(sum, L::load_f(scores + t));
  float kept[L::kWidth] = {0};
  if (before != -__builtin_inff()) L::store_f(kept, exp_of(L::all_f(before - *largest)));
  *total = *total * kept[0] + L::total(sum);
  return kept[0];
}

/// What softmax says is left of a row's earlier sums. Before the first keys they may be no numbers at all.
inline void keep(float kept, float* sums, int64_t count) {
  if (kept == 0) std::fill_n(sums, count, 0.0f);
  if (kept == 0 || kept == 1) return;
  for (int64_t c = 0; c < count; c += L::kWidth)
    L::store_f(sums + c, L::mul(L::load_f(sums + c), L::all_f(kept)));
}
