// Two vectors of a tier side by side as one of twice the lanes, for kernels that want a panel's 16 rows at
// once: what all lanes have in common (four codes of an activation, a table, a constant) is there once.
// Include it inside an anonymous namespace only. What the functions do: lanes_avx512.h.

template <typename Half>
struct Twice {
  static constexpr int kWidth = 2 * Half::kWidth;
  static constexpr int kMaxTile = Half::kMaxTile, kMaxFloatTile = Half::kMaxFloatTile,
                       kSharedFrom = Half::kSharedFrom, kManyFrom = Half::kManyFrom;
  static constexpr bool kUnroll = Half::kUnroll, kGivesNumbers = Half::kGivesNumbers,
                        kAddsPairs = Half::kAddsPairs, kPairs = Half::kPairs;
  static constexpr bool kSumsAreFloats = Half::kSumsAreFloats, kAsksBySteps = Half::kAsksBySteps;
  using Common = typename Half::I;
  struct I {
    typename Half::I low, high;
  };
  struct F {
    typename Half::F low, high;
  };
  template <typename T>
  static const T* next(const void* at) {
    return static_cast<const T*>(at) + Half::kWidth;
  }

  static I load(const void* at) { return {Half::load(at), Half::load(next<int32_t>(at))}; }
  static void store(void* at, I a) {
    Half::store(at, a.low);
    Half::store(static_cast<uint8_t*>(at) + sizeof a.low, a.high);
  }
  static void words_of_rows(const uint8_t* at, int64_t row_bytes, I (&words)[4]) {
    typename Half::I low[4], high[4];
    Half::words_of_rows(at, row_bytes, low);
    Half::words_of_rows(at + Half::kWidth * row_bytes, row_bytes, high);
    for (int i = 0; i < 4; ++i) words[i] = {low[i], high[i]};
  }
  static I all(int32_t value) { return {Half::all(value), Half::all(value)}; }
  static I zero() { return {Half::zero(), Half::zero()}; }
  static I shift_right(I a, int by) { return {Half::shift_right(a.low, by), Half::shift_right(a.high, by)}; }
  static I shift_right_signed(I a, int by) {
    return {Half::shift_right_signed(a.low, by), Half::shift_right_signed(a.high, by)};
  }
  static I shift_left(I a, int by) { return {Half::shift_left(a.low, by), Half::shift_left(a.high, by)}; }
  static I bit_and(I a, I b) { return {Half::bit_and(a.low, b.low), Half::bit_and(a.high, b.high)}; }
  static I bit_or(I a, I b) { return {Half::bit_or(a.low, b.low), Half::bit_or(a.high, b.high)}; }
  static I bit_xor(I a, I b) { return {Half::bit_xor(a.low, b.low), Half::bit_xor(a.high, b.high)}; }
  static I plus(I a, I b) { return {Half::plus(a.low, b.low), Half::plus(a.high, b.high)}; }
  static I bytes(const void* at) { return {Half::bytes(at), Half::bytes(next<uint8_t>(at))}; }
  static I words(const void* at) { return {Half::words(at), Half::words(next<uint16_t>(at))}; }
  static Common table(const uint8_t* entries) { return Half::table(entries); }
  static I lookup(Common table, I codes) {
    return {Half::lookup(table, codes.low), Half::lookup(table, codes.high)};
  }
  static I gather(const uint32_t* table, I index) {
    return {Half::gather(table, index.low), Half::gather(table, index.high)};
  }

  static Common four(const int8_t* at) { return Half::four(at); }
  static I start_bytes(int32_t start) { return {Half::start_bytes(start), Half::start_bytes(start)}; }
  static I dot_at(I sum, I codes, const int8_t* at) {
    const Common x = four(at);
    return {Half::dot(sum.low, codes.low, x), Half::dot(sum.high, codes.high, x)};
  }
  static I pairs(I codes, Common x) { return {Half::pairs(codes.low, x), Half::pairs(codes.high, x)}; }
  static I pairs_of_bytes(I codes, Common x) {
    return {Half::pairs_of_bytes(codes.low, x), Half::pairs_of_bytes(codes.high, x)};
  }
  static I plus_pairs(I a, I b) { return {Half::plus_pairs(a.low, b.low), Half::plus_pairs(a.high, b.high)}; }
  static I plus_totals(I sum, I pairs) {
    return {Half::plus_totals(sum.low, pairs.low), Half::plus_totals(sum.high, pairs.high)};
  }

  static F all_f(float value) { return {Half::all_f(value), Half::all_f(value)}; }
  static F load_f(const float* at) { return {Half::load_f(at), Half::load_f(next<float>(at))}; }
  static void store_f(float* at, F a) {
    Half::store_f(at, a.low);
    Half::store_f(at + Half::kWidth, a.high);
  }
  static F halves(const void* at) { return {Half::halves(at), Half::halves(next<uint16_t>(at))}; }
  static F to_float(I a) { return {Half::to_float(a.low), Half::to_float(a.high)}; }
  static F as_float(I a) { return {Half::as_float(a.low), Half::as_float(a.high)}; }
  static I round(F a) { return {Half::round(a.low), Half::round(a.high)}; }
  static F add(F a, F b) { return {Half::add(a.low, b.low), Half::add(a.high, b.high)}; }
  static F sub(F a, F b) { return {Half::sub(a.low, b.low), Half::sub(a.high, b.high)}; }
  static F mul(F a, F b) { return {Half::mul(a.low, b.low), Half::mul(a.high, b.high)}; }
  static F div(F a, F b) { return {Half::div(a.low, b.low), Half::div(a.high, b.high)}; }
  static F fma(F a, F b, F c) { return {Half::fma(a.low, b.low, c.low), Half::fma(a.high, b.high, c.high)}; }
  static F max(F a, F b) { return {Half::max(a.low, b.low), Half::max(a.high, b.high)}; }
  static F min(F a, F b) { return {Half::min(a.low, b.low), Half::min(a.high, b.high)}; }
  static F abs(F a) { return {Half::abs(a.low), Half::abs(a.high)}; }
  static float largest(F a) { return Half::largest(Half::max(a.low, a.high)); }
  static float total(F a) { return Half::total(Half::add(a.low, a.high)); }
  static int32_t total(I a) { return Half::total(Half::plus(a.low, a.high)); }
  static void store_bytes(int8_t* at, I a) {
    Half::store_bytes(at, a.low);
    Half::store_bytes(at + Half::kWidth, a.high);
  }
  static void prefetch(const void* at) { Half::prefetch(at); }
  static void prefetch_far(const void* at) { Half::prefetch_far(at); }
};
