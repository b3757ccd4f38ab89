// What a tier's table has beside products of blocks: products of panels of floats, the quantising of rows,
// and SiLU. Include it behind panel_body.h and exp.h, in the same namespace, in one file of a tier.

// The columns of a panel of floats: 16 numbers each.
struct F32 {
  static constexpr int kNumberBytes = 4;
  static F load(const uint8_t* at) { return L::as_float(L::load(at)); }
};
struct F16 {
  static constexpr int kNumberBytes = 2;
  static F load(const uint8_t* at) { return L::halves(at); }
};
struct BF16 {
  static constexpr int kNumberBytes = 2;
  static F load(const uint8_t* at) { return L::as_float(L::shift_left(L::words(at), 16)); }
};

/// Four running sums, for the columns 4i, 4i + 1 ...: one alone would wait for each multiplication.
template <typename Number, int R>
void float_tile(const uint8_t* panel, int64_t columns, const void* const* rows, float* out,
                Prefetch prefetch) {
  constexpr int kChains = 4, kColumnBytes = kPanelRows * Number::kNumberBytes;
  for (int lane = 0; lane < kPanelRows; lane += L::kWidth) {
    const uint8_t* at = panel + lane * Number::kNumberBytes;
    const float* x[R];
    F sums[kChains][R];
    for (int r = 0; r < R; ++r) {
      x[r] = static_cast<const float*>(rows[r]);
      for (int k = 0; k < kChains; ++k) sums[k][r] = L::all_f(0);
    }
    const auto add_column = [&](int64_t c, int k) SLUICE_INLINE {
      const F weights = Number::load(at + c * kColumnBytes);
      for (int r = 0; r < R; ++r) sums[k][r] = L::fma(weights, L::all_f(x[r][c]), sums[k][r]);
    };
    int64_t c = 0;
    for (; c + kChains <= columns; c += kChains) {
      for (int line = 0; line < kChains * kColumnBytes; line += 64) {
        const uint8_t* ahead = at + c * kColumnBytes + line;
        if (prefetch.far_bytes >= 0) L::prefetch_far(ahead + prefetch.far_bytes);
        if (prefetch.near_bytes >= 0) L::prefetch(ahead + prefetch.near_bytes);
      }
      repeat<kChains>([&](int k) SLUICE_INLINE { add_column(c + k, k); });
    }
    for (; c < columns; ++c) add_column(c, 0);
    for (int r = 0; r < R; ++r) {
      const F sum = L::add(L::add(sums[0][r], sums[1][r]), L::add(sums[2][r], sums[3][r]));
      L::store_f(out + r * kPanelRows + lane, sum);
    }
  }
}

template <typename Number>
struct FloatTiles {
  static constexpr int kMax = L::kMaxFloatTile;
  template <int R>
  static constexpr auto run = float_tile<Number, R>;
};

void quantize(const float* x, int64_t columns, QuantBlock* out) {
  constexpr int kVectors = kQuantColumns / L::kWidth, kVectorsOfHalf = kVectors / 2;
  for (int64_t c = 0; c < columns; c += kQuantColumns, x += kQuantColumns, ++out) {
    F values[kVectors];
    F magnitude = L::all_f(0), nothing = L::all_f(0);
    for (int v = 0; v < kVectors; ++v) {
      values[v] = L::load_f(x + v * L::kWidth);
      magnitude = L::max(L::abs(values[v]), magnitude);
      nothing = L::fma(values[v], L::all_f(0), nothing);  // NaN if an infinity or a NaN is among them
    }
    const float largest = L::largest(magnitude);
    const float scale = largest / 127.0f + L::total(nothing);
    // A largest of less than a normal float's inverse counts as nothing.
    const F inverse = L::all_f(largest > 1e-36f ? 127.0f / largest : 0.0f);
    int32_t all = 0;
    for (int h = 0; h < 2; ++h) {
      I sums = L::zero();
      for (int v = h * kVectorsOfHalf; v < (h + 1) * kVectorsOfHalf; ++v) {
        // Bounded, NaN included (max gives its second there): sums of codes cannot overflow.
        const F bounded = L::min(L::max(L::mul(values[v], inverse), L::all_f(-127)), L::all_f(127));
        const I codes = L::round(bounded);
        L::store_bytes(out->codes + v * L::kWidth, codes);
        sums = L::plus(sums, codes);
      }
      const int32_t sum = L::total(sums);
      out->scaled_sums[h] = scale * static_cast<float>(sum);
      out->half_starts[h] = kNothing - 32 * sum;
      all += sum;
    }
    out->scale = scale;
    out->scaled_sum = scale * static_cast<float>(all);
    out->starts[0] = kNothing - 8 * all;
    out->starts[1] = kNothing - 128 * all;
  }
}

void silu_mul(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += L::kWidth) {
    const F g = L::load_f(gate + i);
    const F silu = L::div(g, L::add(L::all_f(1), exp_of(L::sub(L::all_f(0), g))));
    L::store_f(out + i, L::mul(silu, L::load_f(up + i)));
  }
}

template <typename Number>
constexpr Product kFloatProduct{product<FloatTiles<Number>>, nullptr, nullptr, nullptr, nullptr};

#define SLUICE_FLOAT_PRODUCT(NAME) kFloatProduct<NAME>,
constexpr Product kSmallProducts[] = {SLUICE_CPU_FLOATS(SLUICE_FLOAT_PRODUCT)
                                          SLUICE_CPU_SMALL_BLOCKS(SLUICE_BLOCK_PRODUCT)};
#undef SLUICE_FLOAT_PRODUCT
