// Sixteen lanes of 32 bits in plain C++, in loops that a compiler can vectorise for any machine. Include it
// inside an anonymous namespace only (simd/matmul_*.cc), after base/half.h. What the functions do:
// lanes_avx512.h.

struct Lanes {
  static constexpr int kWidth = 16;
  static constexpr int kMaxTile = 4;
  static constexpr int kMaxFloatTile = 2;
  static constexpr bool kUnroll = false;
  static constexpr int kSharedFrom = 9;
  static constexpr int kManyFrom = 9;
  static constexpr bool kGivesNumbers = false;
  static constexpr bool kSumsAreFloats = false;
  static constexpr bool kAsksBySteps = false;
  static constexpr bool kAddsPairs = false, kPairs = false;
  struct I {
    uint32_t v[kWidth];
  };
  struct F {
    float v[kWidth];
  };
  template <typename T, typename Function>
  static T each(Function function) {
    T out;
    for (int i = 0; i < kWidth; ++i) out.v[i] = function(i);
    return out;
  }

  static I load(const void* at) {
    I out;
    __builtin_memcpy(&out, at, sizeof out);
    return out;
  }
  static void store(void* at, const I& a) { __builtin_memcpy(at, &a, sizeof a); }
  static void words_of_rows(const uint8_t* at, int64_t row_bytes, I (&words)[4]) {
    for (int row = 0; row < kWidth; ++row) {
      uint32_t four[4];
      __builtin_memcpy(four, at + row * row_bytes, sizeof four);
      for (int i = 0; i < 4; ++i) words[i].v[row] = four[i];
    }
  }
  static I all(int32_t value) {
    return each<I>([=](int) { return static_cast<uint32_t>(value); });
  }
  static I zero() { return all(0); }
  static I shift_right(I a, int by) {
    return each<I>([&](int i) { return a.v[i] >> by; });
  }
  static I shift_right_signed(I a, int by) {
    return each<I>([&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> by); });
  }
  static I shift_left(I a, int by) {
    return each<I>([&](int i) { return a.v[i] << by; });
  }
  static I bit_and(I a, I b) {
    return each<I>([&](int i) { return a.v[i] & b.v[i]; });
  }
  static I bit_or(I a, I b) {
    return each<I>([&](int i) { return a.v[i] | b.v[i]; });
  }
  static I bit_xor(I a, I b) {
    return each<I>([&](int i) { return a.v[i] ^ b.v[i]; });
  }
  static I plus(I a, I b) {
    return each<I>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static I bytes(const void* at) {
    const auto* from = static_cast<const uint8_t*>(at);
    return each<I>([&](int i) { return from[i]; });
  }
  static I words(const void* at) {
    uint16_t from[kWidth];
    __builtin_memcpy(from, at, sizeof from);
    return each<I>([&](int i) { return from[i]; });
  }
  static I table(const uint8_t* entries) {
    I out = zero();
    __builtin_memcpy(&out, entries, 16);
    return out;
  }
  static I lookup(const I& table, I codes) {
    uint8_t entries[16];
    __builtin_memcpy(entries, &table, sizeof entries);
    return each<I>([&](int i) {
      const uint32_t c = codes.v[i];
      return static_cast<uint32_t>(entries[c & 15]) | static_cast<uint32_t>(entries[c >> 8 & 15]) << 8 |
             static_cast<uint32_t>(entries[c >> 16 & 15]) << 16 |
             static_cast<uint32_t>(entries[c >> 24 & 15]) << 24;
    });
  }
  static I gather(const uint32_t* table, I index) {
    return each<I>([&](int i) { return table[index.v[i]]; });
  }

  struct Four {
    int32_t v[4];
  };
  static Four four(const int8_t* at) { return {{at[0], at[1], at[2], at[3]}}; }
  static I dot(I sum, I codes, Four x) {
    return each<I>([&](int i) {
      const auto c = static_cast<int32_t>(codes.v[i]);
      const int32_t products =
          (c & 255) * x.v[0] + (c >> 8 & 255) * x.v[1] + (c >> 16 & 255) * x.v[2] + (c >> 24 & 255) * x.v[3];
      return sum.v[i] + static_cast<uint32_t>(products);
    });
  }
  static I start_bytes(int32_t start) { return all(start); }
  static I dot_bytes(I sum, I codes, Four x) { return dot(sum, codes, x); }

  static F all_f(float value) {
    return each<F>([=](int) { return value; });
  }
  static F load_f(const float* at) {
    F out;
    __builtin_memcpy(&out, at, sizeof out);
    return out;
  }
  static void store_f(float* at, F a) { __builtin_memcpy(at, &a, sizeof a); }
  static F halves(const void* at) {
    uint16_t from[kWidth];
    __builtin_memcpy(from, at, sizeof from);
    return each<F>([&](int i) { return f16_to_f32(from[i]); });
  }
  static F to_float(I a) {
    return each<F>([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
  }
  static F as_float(I a) {
    F out;
    __builtin_memcpy(&out, &a, sizeof out);
    return out;
  }
  /// To the nearest, halves to even, for magnitudes below 2^22; anything else, NaN included, becomes some
  /// number.
  static I round(F a) {
    return each<I>([&](int i) {
      const float bounded = a.v[i] > 4e6f ? 4e6f : a.v[i] > -4e6f ? a.v[i] : -4e6f;
      return static_cast<uint32_t>(static_cast<int32_t>((bounded + 0x1.8p23f) - 0x1.8p23f));
    });
  }
  static F add(F a, F b) {
    return each<F>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each<F>([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each<F>([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each<F>([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return each<F>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F max(F a, F b) {
    return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F abs(F a) {
    return each<F>([&](int i) { return a.v[i] < 0 ? -a.v[i] : a.v[i]; });
  }
  static float largest(F a) {
    float out = a.v[0];
    for (int i = 1; i < kWidth; ++i) out = a.v[i] > out ? a.v[i] : out;
    return out;
  }
  static float total(F a) {
    float out = 0;
    for (const float value : a.v) out += value;
    return out;
  }
  static int32_t total(I a) {
    uint32_t out = 0;
    for (const uint32_t value : a.v) out += value;
    return static_cast<int32_t>(out);
  }
  static void store_bytes(int8_t* at, I a) {
    for (int i = 0; i < kWidth; ++i) {
      const auto value = static_cast<int32_t>(a.v[i]);
      at[i] = static_cast<int8_t>(value > 127 ? 127 : value < -128 ? -128 : value);
    }
  }
  static void prefetch(const void*) {}
  static void prefetch_far(const void*) {}
};
