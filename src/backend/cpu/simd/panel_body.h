// The products of panels of blocks with activation rows: the bodies that all tiers share. Include it inside
// an anonymous namespace only, after a tier's Lanes and codecs.h.

using L = Lanes;

#include "backend/cpu/simd/unroll.h"

// Sanitizers would take some minutes for a file of unrolled bodies.
#ifdef SLUICE_SANITIZED
constexpr bool kUnrolled = false;
#else
constexpr bool kUnrolled = L::kUnroll;
#endif

/// Calls f(0) .. f(n - 1), unrolled where the tier wants it: arrays of vectors then live in registers. By the
/// compiler's loops, not by a body for each number: those would be inlined, each through every function
/// around them, for most of a compilation's time.
template <int n, typename Function>
SLUICE_INLINE inline void repeat(Function f) {
  if constexpr (kUnrolled) {
#ifdef __clang__
#pragma unroll
#else
#pragma GCC unroll 16
#endif
    for (int i = 0; i < n; ++i) f(i);
  } else {
    for (int i = 0; i < n; ++i) f(i);
  }
}

/// The same, of several by a body for each number: addresses that hang on it are known before what is inside
/// is unrolled.
template <int n, typename Function>
SLUICE_INLINE inline void each(Function f) {
  if constexpr (kUnrolled && n > 1) {
    call_each(f, std::make_integer_sequence<int, n>{});
  } else {
    repeat<n>(f);
  }
}

/// Asks for the lines that lie ahead of a block, a few at a time: a burst fills up what a core has for
/// outstanding lines, and everything waits. `both`: near and far are there.
template <typename Codec, bool both>
class Ask {
 public:
  Ask(const uint8_t* block, Prefetch prefetch)
      : far_(block + prefetch.far_bytes), near_(block + prefetch.near_bytes), prefetch_(prefetch) {}
  /// Beside step 0 .. 7 of a group, or for all of them beside the first.
  SLUICE_INLINE void operator()(int group, int step) const {
    if (!L::kAsksBySteps && step != 0) return;
    const int part = group * 8 + step;
    for (int line = line_from(part); line < line_from(part + (L::kAsksBySteps ? 1 : 8)); ++line) {
      if (both || prefetch_.far_bytes >= 0) L::prefetch_far(far_ + 64 * line);
      if (both || prefetch_.near_bytes >= 0) L::prefetch(near_ + 64 * line);
    }
  }

 private:
  /// The first line of the block that begins in this part of it or later.
  static constexpr int line_from(int part) {
    return (part * Codec::kPackedBytes / (8 * Codec::kGroups) + 63) / 64;
  }

  const uint8_t *far_, *near_;
  Prefetch prefetch_;
};

/// Where products come as pairs in 16 bits: how many of these can be added up before they are widened, of a
/// half's `steps`. A pair is at most 2 * 127 * largest.
constexpr int pairs_that_fit(int largest, int steps) {
  while (steps * 2 * 127 * largest > 32767) steps /= 2;
  return steps;
}

/// Where sums are floats: whole numbers of up to 22 bits, added to the bits of this one, are added to it. So
/// a sum of products needs no conversion, but this times the scale taken away, for which 24 bits are enough.
constexpr float kBase = 0x1.8p23f;
constexpr int32_t kBaseBits = 0x4B400000;

/// What a sum of nothing is.
constexpr int32_t kNothing = L::kSumsAreFloats ? kBaseBits : 0;

/// Whether a start that a block holds makes up for the offset of the codes; where sums are whole numbers one
/// can be made of those for any offset.
template <typename Codec>
constexpr bool kHasStart =
    !L::kSumsAreFloats ||
    (Codec::kHalves == 2 ? Codec::kOffset == 32 : Codec::kOffset == 8 || Codec::kOffset == 128);

/// What the sums of one half (or the whole) of a group begin with: it makes up for the offset of the codes,
/// or add_products does.
template <typename Codec>
SLUICE_INLINE inline I start_of(const QuantBlock& x, int half) {
  if constexpr (Codec::kOffset == 0 || !kHasStart<Codec>) {
    return L::all(kNothing);
  } else if constexpr (Codec::kHalves == 2 && Codec::kBytes) {
    static_assert(Codec::kOffset == 128);
    return L::start_bytes(4 * x.half_starts[half]);
  } else if constexpr (Codec::kHalves == 2) {
    static_assert(Codec::kOffset == 32 || Codec::kOffset == 4);
    const I start = L::all(x.half_starts[half]);
    return Codec::kOffset == 32 ? start : L::shift_right_signed(start, 3);
  } else if constexpr (Codec::kBytes) {
    return L::start_bytes(x.starts[1]);
  } else {
    static_assert(Codec::kOffset == 8 || Codec::kOffset == 16);
    const I start = L::all(x.starts[0]);
    return Codec::kOffset == 8 ? start : L::shift_left(start, 1);
  }
}

/// The sums of one half (or the whole) of a group for R rows: integers, so exact. ask(j) is called beside
/// each step.
template <typename Codec, int R, typename Beside>
SLUICE_INLINE inline void dot_codes(const Codec& codec, int group, int half, const QuantBlock* const* x,
                                    I* sums, Beside ask) {
  constexpr int kSteps = 8 / Codec::kHalves;
  repeat<R>([&](int r) SLUICE_INLINE { sums[r] = start_of<Codec>(*x[r], half); });
  using V = std::conditional_t<(R > 0), L, void>;  // names that a tier does not have are not looked up
  if constexpr (V::kAddsPairs) {
    constexpr int kRun = pairs_that_fit(Codec::kLargest, kSteps);
    repeat<kSteps / kRun>([&](int run) SLUICE_INLINE {
      I pairs[R];
      repeat<kRun>([&](int step) SLUICE_INLINE {
        const int j = half * kSteps + run * kRun + step;
        ask(j);
        const I codes = codec.code(group, j);
        repeat<R>([&](int r) SLUICE_INLINE {
          const auto four = L::four(x[r]->codes + 4 * j);
          const I products = Codec::kBytes ? V::pairs_of_bytes(codes, four) : V::pairs(codes, four);
          pairs[r] = step == 0 ? products : V::plus_pairs(pairs[r], products);
        });
      });
      repeat<R>([&](int r) SLUICE_INLINE { sums[r] = V::plus_totals(sums[r], pairs[r]); });
    });
  } else {
    repeat<kSteps>([&](int step) SLUICE_INLINE {
      const int j = half * kSteps + step;
      ask(j);
      const I codes = codec.code(group, j);
      repeat<R>([&](int r) SLUICE_INLINE {
        const int8_t* at = x[r]->codes + 4 * j;
        if constexpr (V::kSumsAreFloats) {
          sums[r] = V::dot_at(sums[r], codes, at);
        } else {
          sums[r] =
              Codec::kBytes ? V::dot_bytes(sums[r], codes, V::four(at)) : V::dot(sums[r], codes, V::four(at));
        }
      });
    });
  }
}

/// The same of two panels: an activation is loaded once for both. Of tiers whose vectors hold a panel.
template <typename Codec, int R>
SLUICE_INLINE inline void dot_codes_of_two(const Codec (&codecs)[2], int group, int half,
                                           const QuantBlock* const* x, I (&sums)[2][R]) {
  constexpr int kSteps = 8 / Codec::kHalves;
  using V = std::conditional_t<(R > 0), L, void>;  // names that a tier does not have are not looked up
  repeat<R>([&](int r) SLUICE_INLINE { sums[0][r] = sums[1][r] = start_of<Codec>(*x[r], half); });
  repeat<kSteps>([&](int step) SLUICE_INLINE {
    const int j = half * kSteps + step;
    const I codes[2] = {codecs[0].code(group, j), codecs[1].code(group, j)};
    repeat<R>([&](int r) SLUICE_INLINE {
      const auto four = L::four(x[r]->codes + 4 * j);
      repeat<2>([&](int p) SLUICE_INLINE {
        sums[p][r] =
            Codec::kBytes ? V::dot_bytes(sums[p][r], codes[p], four) : V::dot(sums[p][r], codes[p], four);
      });
    });
  });
}

/// products (+)= scale * dots of one half.
template <typename Codec, int R>
SLUICE_INLINE inline void scale_dots(const Codec& codec, int group, int half, const I* dots, F* products) {
  const F scale = codec.scale(group, half);
  if constexpr (L::kSumsAreFloats && Codec::kLargeScales) {
    repeat<R>([&](int r) SLUICE_INLINE {
      products[r] = L::mul(L::sub(L::as_float(dots[r]), L::all_f(kBase)), scale);
    });
  } else if constexpr (L::kSumsAreFloats) {
    const F base = L::mul(scale, L::all_f(-kBase));
    repeat<R>([&](int r) SLUICE_INLINE {
      const F product = L::fma(L::as_float(dots[r]), scale, base);
      products[r] = half == 0 ? product : L::add(products[r], product);
    });
  } else {
    repeat<R>([&](int r) SLUICE_INLINE {
      const F product = L::to_float(dots[r]);
      products[r] = half == 0 ? L::mul(product, scale) : L::fma(product, scale, products[r]);
    });
  }
}

/// A half's (or the whole group's) sum of x.
template <typename Codec>
SLUICE_INLINE inline float scaled_sum(const QuantBlock& x, int half) {
  return Codec::kHalves == 1 ? x.scaled_sum : x.scaled_sums[half];
}

/// sums += scale of x * products + minimum * sum of x, of which the codes' offset is one where no start makes
/// up for it.
template <typename Codec, int R>
SLUICE_INLINE inline void add_products(const Codec& codec, int group, const QuantBlock* const* x,
                                       const F* products, F* sums) {
  repeat<R>([&](int r) SLUICE_INLINE { sums[r] = L::fma(products[r], L::all_f(x[r]->scale), sums[r]); });
  const auto add_minimum = [&](int half, F minimum) SLUICE_INLINE {
    repeat<R>([&](int r) SLUICE_INLINE {
      sums[r] = L::fma(minimum, L::all_f(scaled_sum<Codec>(*x[r], half)), sums[r]);
    });
  };
  repeat<Codec::kHalves>([&]([[maybe_unused]] auto half) SLUICE_INLINE {
    if constexpr (Codec::kMinimum) {
      add_minimum(half, codec.minimum(group, half));
    } else if constexpr (!kHasStart<Codec> && Codec::kOffset != 0) {
      add_minimum(half, L::mul(codec.scale(group, half), L::all_f(-static_cast<float>(Codec::kOffset))));
    }
  });
}

/// One group of 32 columns: sums += scale of x * sum of (scale * (codes . x)) + minimum * sum of x, in
/// float32.
template <typename Codec, int R, typename Beside>
SLUICE_INLINE inline void add_group(const Codec& codec, int group, const QuantBlock* const* x, F* sums,
                                    Beside ask) {
  F products[R]{};
  repeat<Codec::kHalves>([&](int half) SLUICE_INLINE {
    I dots[R];
    dot_codes<Codec, R>(codec, group, half, x, dots, ask);
    scale_dots<Codec, R>(codec, group, half, dots, products);
  });
  add_products<Codec, R>(codec, group, x, products, sums);
}

/// The same of two panels.
template <typename Codec, int R>
SLUICE_INLINE inline void add_group_of_two(const Codec (&codecs)[2], int group, const QuantBlock* const* x,
                                           F (&sums)[2][R]) {
  F products[2][R]{};
  repeat<Codec::kHalves>([&](int half) SLUICE_INLINE {
    I dots[2][R];
    dot_codes_of_two<Codec, R>(codecs, group, half, x, dots);
    repeat<2>([&](int p)
                  SLUICE_INLINE { scale_dots<Codec, R>(codecs[p], group, half, dots[p], products[p]); });
  });
  repeat<2>([&](int p) SLUICE_INLINE { add_products<Codec, R>(codecs[p], group, x, products[p], sums[p]); });
}

/// The sums of R rows with all rows of a panel.
template <int R>
struct PanelSums {
  static constexpr int kParts = kPanelRows / L::kWidth;
  F of[kParts][R];

  PanelSums() {
    for (auto& part : of) {
      for (F& sum : part) sum = L::all_f(0);
    }
  }
  void store(float* out) const {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < kParts; ++p) L::store_f(out + r * kPanelRows + p * L::kWidth, of[p][r]);
    }
  }
};

/// The groups of a packed block; x goes on behind it.
template <typename Codec, int R, typename Ask>
SLUICE_INLINE inline void add_block(const uint8_t* block, const QuantBlock** x, PanelSums<R>& sums, Ask ask) {
  repeat<PanelSums<R>::kParts>([&](int p) SLUICE_INLINE {
    const Codec codec(block, p * L::kWidth);
    const QuantBlock* at[R];
    for (int r = 0; r < R; ++r) at[r] = x[r];
    each<Codec::kGroups>([&](auto g) SLUICE_INLINE {
      add_group<Codec, R>(codec, g, at, sums.of[p], [&](int step) SLUICE_INLINE {
        if (p == 0) ask(g, step);
      });
      for (int r = 0; r < R; ++r) ++at[r];
    });
  });
  for (int r = 0; r < R; ++r) x[r] += Codec::kGroups;
}

/// Whether bodies without a question at every line are worth their space: of few rows' work asking is a good
/// part.
template <int R>
constexpr bool kAsksForBoth = L::kAsksBySteps && (R < L::kMaxTile);
inline bool both_are_there(Prefetch prefetch) { return prefetch.far_bytes >= 0 && prefetch.near_bytes >= 0; }

template <typename Codec, int R, bool both>
SLUICE_INLINE inline void asking_tile(const uint8_t* panel, int64_t columns, const void* const* rows,
                                      float* out, Prefetch prefetch) {
  const QuantBlock* x[R];
  PanelSums<R> sums;
  for (int r = 0; r < R; ++r) x[r] = static_cast<const QuantBlock*>(rows[r]);
  for (int64_t c = 0; c < columns; c += Codec::kGroups * kQuantColumns, panel += Codec::kPackedBytes)
    add_block<Codec, R>(panel, x, sums, Ask<Codec, both>(panel, prefetch));
  sums.store(out);
}

template <typename Codec, int R>
void quant_tile(const uint8_t* panel, int64_t columns, const void* const* rows, float* out,
                Prefetch prefetch) {
  if constexpr (kAsksForBoth<R>) {
    if (both_are_there(prefetch)) return asking_tile<Codec, R, true>(panel, columns, rows, out, prefetch);
  }
  asking_tile<Codec, R, false>(panel, columns, rows, out, prefetch);
}

/// kPairRows rows times two panels.
template <typename Codec>
void pair_tile(const uint8_t* const* panels, int64_t columns, const void* const* rows, float* const* out) {
  constexpr int R = kPairRows;
  static_assert(!L::kPairs || PanelSums<R>::kParts == 1);
  const uint8_t* at[2] = {panels[0], panels[1]};
  const QuantBlock* x[R];
  F sums[2][R];
  for (int r = 0; r < R; ++r) {
    x[r] = static_cast<const QuantBlock*>(rows[r]);
    sums[0][r] = sums[1][r] = L::all_f(0);
  }
  for (int64_t c = 0; c < columns; c += Codec::kGroups * kQuantColumns) {
    const Codec codecs[2] = {Codec(at[0], 0), Codec(at[1], 0)};
    repeat<Codec::kGroups>([&](int g) SLUICE_INLINE {
      add_group_of_two<Codec, R>(codecs, g, x, sums);
      for (int r = 0; r < R; ++r) ++x[r];
    });
    for (const uint8_t*& panel : at) panel += Codec::kPackedBytes;
  }
  for (int p = 0; p < 2; ++p) {
    for (int r = 0; r < R; ++r) L::store_f(out[p] + r * kPanelRows, sums[p][r]);
  }
}

/// Fifth bits of a row a lane, to where panels have them: bit 4j + b becomes bit j of byte b, by four
/// exchanges of bits (packed.cc).
inline I spread(I word) {
  const auto exchange = [](I a, int32_t lower, int by) {
    const I differ = L::bit_and(L::bit_xor(a, L::shift_right(a, by)), L::all(lower));
    return L::bit_xor(a, L::bit_xor(differ, L::shift_left(differ, by)));
  };
  word = exchange(exchange(word, 0x0000CCCC, 14), 0x00AA00AA, 7);
  return exchange(exchange(word, 0x0C0C0C0C, 2), 0x22222222, 1);
}

/// The words of a part of a block, from the rows of the file to a panel: squares of four words, the last of
/// which may lie over the one before, or over what stands beside fewer words in a block of `bytes`.
template <Part part, int bytes>
SLUICE_INLINE inline void pack_words(const uint8_t* file, int64_t row_bytes, uint8_t* packed) {
  constexpr int kEnd = part.offset + 4 * part.count;
  repeat<(part.count + 3) / 4>([&](int square) SLUICE_INLINE {
    const int beside = part.offset + 16 <= bytes ? part.offset : kEnd - 16;
    const int offset = part.count < 4 ? beside : std::min(part.offset + 16 * square, kEnd - 16);
    repeat<kPanelRows / L::kWidth>([&](int p) SLUICE_INLINE {
      I words[4];
      L::words_of_rows(file + offset + p * L::kWidth * row_bytes, row_bytes, words);
      repeat<4>([&](int i) SLUICE_INLINE {
        const int word = (offset - part.offset) / 4 + i;
        if (word < 0 || word >= part.count) return;
        const I here = part.kind == PartKind::Spread ? spread(words[i]) : words[i];
        L::store(packed + word * kWordBytes + 4 * p * L::kWidth, here);
      });
    });
  });
}

template <typename Unit, Part part>
SLUICE_INLINE inline void pack_units(const uint8_t* file, int64_t row_bytes, uint8_t* packed) {
  for (int i = 0; i < part.count; ++i) {
    Unit units[kPanelRows];
    for (int row = 0; row < kPanelRows; ++row) {
      const auto at = part.offset + i * static_cast<int>(sizeof(Unit));
      __builtin_memcpy(&units[row], file + row * row_bytes + at, sizeof(Unit));
    }
    __builtin_memcpy(packed + i * sizeof units, units, sizeof units);
  }
}

/// A block of 16 rows.
template <quant::Type type>
SLUICE_INLINE inline void pack_block(const uint8_t* file, int64_t row_bytes, uint8_t* packed) {
  static constexpr Layout kLayout = *find_layout(type);
  call_each(
      [&](auto p) SLUICE_INLINE {
        constexpr Part kPart = kLayout.part[p];
        uint8_t* to = packed + kPanelRows * kLayout.bytes_before(p);
        if constexpr (kPart.kind == PartKind::Bytes) {
          pack_units<uint8_t, kPart>(file, row_bytes, to);
        } else if constexpr (kPart.kind == PartKind::Halves) {
          pack_units<uint16_t, kPart>(file, row_bytes, to);
        } else {
          pack_words<kPart, kLayout.bytes()>(file, row_bytes, to);
        }
      },
      std::make_integer_sequence<int, kLayout.parts>{});
}

/// Rows are packed block by block, on their way to the registers. What lies more than a panel ahead is asked
/// for meanwhile, from front to back, because 16 rows side by side are no stream that a processor sees; and
/// so that a panel's last rows are there, too, when its first blocks are wanted.
template <typename Codec, bool both>
SLUICE_INLINE inline void asking_file_tile(const std::byte* rows, int64_t row_bytes, int64_t columns,
                                           const void* activation, float* out, Prefetch prefetch) {
  constexpr int kBytes = Codec::kPackedBytes / kPanelRows;
  static_assert(kBytes == find_layout(Codec::kType)->bytes());
  const auto* file = reinterpret_cast<const uint8_t*>(rows);
  const uint8_t* next = file + kPanelRows * row_bytes;
  const auto* x = static_cast<const QuantBlock*>(activation);
  PanelSums<1> sums;
  for (int64_t c = 0; c < columns; c += Codec::kGroups * kQuantColumns) {
    alignas(64) uint8_t block[Codec::kPackedBytes];
    pack_block<Codec::kType>(file, row_bytes, block);
    add_block<Codec, 1>(block, &x, sums, Ask<Codec, both>(next, prefetch));
    file += kBytes, next += Codec::kPackedBytes;
  }
  sums.store(out);
}

template <typename Codec>
void file_product(const std::byte* rows, int64_t row_bytes, int64_t columns, const void* activation,
                  float* out, Prefetch prefetch) {
  if constexpr (kAsksForBoth<1>) {
    if (both_are_there(prefetch))
      return asking_file_tile<Codec, true>(rows, row_bytes, columns, activation, out, prefetch);
  }
  asking_file_tile<Codec, false>(rows, row_bytes, columns, activation, out, prefetch);
}

template <typename Codec>
struct QuantTiles {
  static constexpr int kMax = L::kMaxTile;
  template <int R>
  static constexpr auto run = quant_tile<Codec, R>;
};

/// Any number of rows in tiles of kMax, kMax / 2, ... 1.
template <typename Tiles, int R = Tiles::kMax>
void product(const uint8_t* panel, int64_t columns, const void* const* x, int count, float* out,
             Prefetch prefetch) {
  for (; count >= R; count -= R, x += R, out += R * kPanelRows)
    Tiles::template run<R>(panel, columns, x, out, prefetch);
  if constexpr (R > 1) {
    if (count > 0) product<Tiles, R / 2>(panel, columns, x, count, out, prefetch);
  }
}

#include "backend/cpu/simd/many_rows.h"

template <typename Codec>
constexpr ManyProduct many_of() {
  if constexpr (Codec::kGroups >= L::kSharedFrom) return many_rows<Codec>;
  return nullptr;
}
template <typename Codec>
constexpr PanelNumbers numbers_of() {
  if constexpr (L::kGivesNumbers) return panel_numbers<Codec>;
  return nullptr;
}
template <typename Codec>
constexpr PairProduct pair_of() {
  // Blocks of 256 columns keep their scales in memory, and two of them more than is gained.
  if constexpr (L::kPairs && Codec::kGroups == 1) return pair_tile<Codec>;
  return nullptr;
}
template <typename Codec>
constexpr PanelProduct few_of() {
  if constexpr (Codec::kUnpacksFirst)
    return many_rows<Codec>;
  else
    return product<QuantTiles<Codec>>;
}
template <typename Codec>
constexpr FileProduct file_of() {
  if constexpr (Codec::kUnpacksFirst)
    return unpacked_file_product<Codec>;
  else
    return file_product<Codec>;
}
template <typename Codec>
constexpr Product kProduct{few_of<Codec>(), file_of<Codec>(), pair_of<Codec>(), many_of<Codec>(),
                           numbers_of<Codec>()};
/// Of lists of formats (formats.h): the elements of an array.
#define SLUICE_BLOCK_PRODUCT(NAME) kProduct<NAME>,
