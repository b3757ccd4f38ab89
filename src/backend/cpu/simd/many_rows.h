// Products of a panel with many rows: its codes are brought to bytes once for all of them, its scales to
// floats, a stretch of columns at a time that stays in the first-level cache. All types take the same steps
// then, in little code, and none is unpacked again for every few rows. panel_body.h includes it.

/// Whether registers hold the sums of a tile of rows with all of a panel's while its groups pass by.
constexpr bool kSumsStay = L::kPairs;

/// A group of 32 columns of all rows of a panel.
template <typename Codec>
struct Unpacked {
  alignas(64) uint8_t codes[8 * kWordBytes];
  float scales[Codec::kHalves * kPanelRows];
  float minima[Codec::kMinimum ? Codec::kHalves * kPanelRows : 1];
};

/// A vector of these rows, from `row` on, as a codec (codecs.h).
template <typename Codec>
struct UnpackedRows {
  static constexpr int kGroups = 1, kHalves = Codec::kHalves, kOffset = Codec::kOffset,
                       kLargest = Codec::kLargest;
  static constexpr bool kMinimum = Codec::kMinimum, kBytes = Codec::kBytes,
                        kLargeScales = Codec::kLargeScales;
  const Unpacked<Codec>& of;
  int row;

  I code(int, int j) const { return L::load(of.codes + j * kWordBytes + 4 * row); }
  F scale(int, int half) const { return L::load_f(of.scales + half * kPanelRows + row); }
  F minimum(int, int half) const { return L::load_f(of.minima + half * kPanelRows + row); }
};

template <typename Codec>
SLUICE_INLINE inline void unpack_block(const uint8_t* block, Unpacked<Codec>* out) {
  for (int row = 0; row < kPanelRows; row += L::kWidth) {
    const Codec codec(block, row);
    const auto unpack_group = [&](int g) SLUICE_INLINE {
      repeat<8>([&](int j)
                    SLUICE_INLINE { L::store(out[g].codes + j * kWordBytes + 4 * row, codec.code(g, j)); });
      repeat<Codec::kHalves>([&](int h) SLUICE_INLINE {
        L::store_f(out[g].scales + h * kPanelRows + row, codec.scale(g, h));
        if constexpr (Codec::kMinimum) L::store_f(out[g].minima + h * kPanelRows + row, codec.minimum(g, h));
      });
    };
    if constexpr (Codec::kUnpacksFirst) {
      for (int g = 0; g < Codec::kGroups; ++g) unpack_group(g);
    } else {
      repeat<Codec::kGroups>(unpack_group);
    }
  }
}

/// sums [R][kPanelRows] += some groups times those of R rows. Where registers are few the sums stay in
/// memory: they are for those of a group.
template <typename Codec, int R>
void add_unpacked(const Unpacked<Codec>* groups, int64_t count, const void* const* rows, int64_t first,
                  float* sums) {
  const QuantBlock* x[R];
  for (int r = 0; r < R; ++r) x[r] = static_cast<const QuantBlock*>(rows[r]) + first;
  F of[R];
  const auto load = [&](int row) SLUICE_INLINE {
    repeat<R>([&](int r) SLUICE_INLINE { of[r] = L::load_f(sums + r * kPanelRows + row); });
  };
  const auto store = [&](int row) SLUICE_INLINE {
    repeat<R>([&](int r) SLUICE_INLINE { L::store_f(sums + r * kPanelRows + row, of[r]); });
  };
  if (kSumsStay) load(0);
  for (const Unpacked<Codec>* group = groups; group < groups + count; ++group) {
    for (int row = 0; row < kPanelRows; row += L::kWidth) {
      if (!kSumsStay) load(row);
      add_group<UnpackedRows<Codec>, R>({*group, row}, 0, x, of, [](int) {});
      if (!kSumsStay) store(row);
    }
    for (int r = 0; r < R; ++r) ++x[r];
  }
  if (kSumsStay) store(0);
}

/// The rest of the rows in tiles of R, R / 2, ... 1.
template <typename Codec, int R = L::kMaxTile>
SLUICE_INLINE inline void add_all_rows(const Unpacked<Codec>* groups, int64_t count, const void* const* rows,
                                       int number, int64_t first, float* sums) {
  for (; number >= R; number -= R, rows += R, sums += R * kPanelRows)
    add_unpacked<Codec, R>(groups, count, rows, first, sums);
  if constexpr (R > 1) add_all_rows<Codec, R / 2>(groups, count, rows, number, first, sums);
}

template <typename Codec>
void many_rows(const uint8_t* panel, int64_t columns, const void* const* rows, int count, float* out,
               Prefetch prefetch) {
  constexpr int64_t kGroups = 16;
  Unpacked<Codec> unpacked[kGroups];
  std::fill_n(out, count * kPanelRows, 0.0f);
  for (int64_t first = 0; first < columns / kQuantColumns; first += kGroups) {
    const int64_t groups = std::min(kGroups, columns / kQuantColumns - first);
    for (int64_t g = 0; g < groups; g += Codec::kGroups, panel += Codec::kPackedBytes) {
      const Ask<Codec, false> ask(panel, prefetch);
      for (int step = 0; step < 8 * Codec::kGroups; ++step) ask(step / 8, step % 8);
      unpack_block(panel, unpacked + g);
    }
    add_all_rows(unpacked, groups, rows, count, first, out);
  }
}

/// One row of a file's own rows, whose blocks are packed and unpacked on their way.
template <typename Codec>
void unpacked_file_product(const std::byte* rows, int64_t row_bytes, int64_t columns, const void* activation,
                           float* out, Prefetch prefetch) {
  constexpr int kBytes = Codec::kPackedBytes / kPanelRows;
  const auto* file = reinterpret_cast<const uint8_t*>(rows);
  const uint8_t* next = file + kPanelRows * row_bytes;
  std::fill_n(out, kPanelRows, 0.0f);
  for (int64_t group = 0; group < columns / kQuantColumns; group += Codec::kGroups) {
    alignas(64) uint8_t block[Codec::kPackedBytes];
    Unpacked<Codec> unpacked[Codec::kGroups];
    pack_block<Codec::kType>(file, row_bytes, block);
    const Ask<Codec, false> ask(next, prefetch);
    for (int step = 0; step < 8 * Codec::kGroups; ++step) ask(step / 8, step % 8);
    unpack_block(block, unpacked);
    add_unpacked<Codec, 1>(unpacked, Codec::kGroups, &activation, group, out);
    file += kBytes, next += Codec::kPackedBytes;
  }
}

template <typename Codec>
void panel_numbers(const uint8_t* panel, int64_t columns, float* out) {
  constexpr int64_t kOfBlock = Codec::kGroups * kQuantColumns;
  Unpacked<Codec> unpacked[Codec::kGroups];
  for (int64_t first = 0; first < columns; first += kOfBlock, panel += Codec::kPackedBytes) {
    unpack_block(panel, unpacked);
    for (int64_t c = 0; c < kOfBlock; ++c, out += kPanelRows) {
      const auto step = static_cast<int>(c % kQuantColumns / 4), half = step * Codec::kHalves / 8;
      for (int row = 0; row < kPanelRows; row += L::kWidth) {
        const UnpackedRows<Codec> rows{unpacked[c / kQuantColumns], row};
        const I code = bits(rows.code(0, step), 8 * static_cast<int>(c % 4), 255);
        const F number = L::mul(L::sub(L::to_float(code), L::all_f(Codec::kOffset)), rows.scale(0, half));
        L::store_f(out + row, Codec::kMinimum ? L::add(number, rows.minimum(0, half)) : number);
      }
    }
  }
}
