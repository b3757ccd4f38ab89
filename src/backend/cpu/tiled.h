// Products on matrix tiles, for steps of many rows: activations become bf16, and so does each panel of a
// weight, once for all rows (simd/tiles.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/packed_weights.h"
#include "backend/cpu/simd/tiles.h"
#include "backend/cpu/stealing.h"

namespace sluice::backend::cpu {

/// Floats of a cache line. Tiles are loaded line by line: a worker's scratch begins at a page, but theirs may
/// be its middle.
inline constexpr int64_t kLineFloats = 64 / sizeof(float);
inline float* next_line(float* at) {
  const auto behind = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) / sizeof(float) % kLineFloats);
  return at + (kLineFloats - behind) % kLineFloats;
}

/// Whole groups of kGroupRows.
inline int64_t whole_groups(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows * kGroupRows; }

/// bf16 numbers of a chunk of rows at most: half to three quarters of the second-level cache.
inline constexpr int64_t kMostRounded = 768 << 10;

/// How products on tiles go through a chunk of rows, which are bf16 numbers in the second-level cache: at
/// once, or where that would be few of the rows, and weights be unpacked for each few, in blocks of columns.
struct TiledChunk {
  int64_t rows, columns;

  /// Whether so many columns stay together, however many rows there are.
  static bool whole(int64_t columns) { return columns <= 3072; }
  static TiledChunk of(int64_t rows, int64_t columns) {
    if (whole_groups(rows) * columns <= kMostRounded) return {whole_groups(rows), columns};
    const int64_t most =
        whole(columns) ? std::max<int64_t>(2, kMostRounded / columns / kGroupRows) * kGroupRows : 512;
    const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
    return {whole_groups((rows + chunks - 1) / chunks), whole(columns) ? columns : 1024};
  }
  /// Of the sums of a step, with two panels.
  int64_t sums_floats() const { return rows / kGroupRows * 2 * kTileFloats; }
};

/// Floats of sums that wait for the next block of columns, or as many as one step has.
inline constexpr int64_t kWaitingFloats = 1 << 20;
/// bf16 numbers of a chunk of rows, of up to `rows`.
inline int64_t most_rounded(int64_t rows, int64_t columns) {
  return std::min(whole_groups(rows) * columns, kMostRounded);
}

/// Floats of scratch for products on tiles of up to `rows` rows: two stretches of two panels unpacked, sums
/// and bf16 rows.
inline int64_t tiled_floats(int64_t rows, int64_t columns) {
  return 2 * kPanelRows * kTiledColumns + kWaitingFloats + most_rounded(rows, columns) / 2 + kLineFloats;
}

/// Rows of bf16 as products on tiles take them (TileKernels::round): whole ones, a group after the other.
struct RoundedRows {
  const uint16_t* data;
};

/// Scratch of products on tiles: two panels, a stretch of columns of each unpacked and the next, the sums of
/// a chunk of rows with both, and those rows.
struct TiledScratch {
  uint16_t* stretches[2][2];  // of both panels
  float* sums;
  uint16_t* rows;

  explicit TiledScratch(float* scratch) {
    float* at = next_line(scratch);
    for (auto& stretch : stretches) {
      for (uint16_t*& panel : stretch) {
        panel = reinterpret_cast<uint16_t*>(at);
        at += kPanelRows * kTiledColumns / 2;
      }
    }
    sums = at;
    rows = reinterpret_cast<uint16_t*>(sums + kWaitingFloats);
  }
};

/// One of the two panels of a product on tiles: read once a step, then unpacked a stretch at a time.
class TiledPanel {
 public:
  void open(const Matrix& weight, int64_t matrix, int64_t panel) {
    weight_ = &weight;
    data_ = weight.panel(matrix, panel);
  }
  int64_t columns() const { return weight_->columns; }
  bool few(int64_t rows) const { return weight_->on_tiles.few != nullptr && rows <= kFewGroups * kGroupRows; }
  /// Of all columns with rows that were rounded whole, few of them; sums as TiledFew has them.
  void multiply_few(const uint16_t* rounded, int64_t rows, float* sums) const {
    weight_->on_tiles.few(data_, weight_->columns, weight_->prefetch, rounded,
                          static_cast<int>(whole_groups(rows) / kGroupRows), sums);
  }
  void unpack(int64_t first, int64_t columns, uint16_t* into) const {
    if (columns > 0) weight_->unpack(at(first), columns, into, ahead(first));
  }
  bool unpacks_beside() const { return weight_->on_tiles.beside != nullptr; }
  /// A product beside which kBesideGroups groups of columns are unpacked, from `first` on.
  void unpack_beside(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, bool more,
                     float* sums, int64_t first, uint16_t* into) const {
    weight_->on_tiles.beside(panels, x0, x1, more, sums, at(first), ahead(first), into);
  }

 private:
  int64_t offset(int64_t column) const { return weight_->panel_bytes * column / weight_->columns; }
  const uint8_t* at(int64_t column) const { return data_ + offset(column); }
  /// Where another matrix's panels lie between this one's, what lies ahead is beyond them.
  Prefetch ahead(int64_t column) const {
    const auto between = static_cast<int32_t>(weight_->panel_stride - weight_->panel_bytes);
    Prefetch prefetch = weight_->prefetch;
    for (int32_t* bytes : {&prefetch.far_bytes, &prefetch.near_bytes}) {
      if (offset(column) + *bytes >= weight_->panel_bytes) *bytes += between;
    }
    return prefetch;
  }

  const Matrix* weight_ = nullptr;
  const uint8_t* data_ = nullptr;
};

/// The stretches of a product's panels, one in use and the next, which is unpacked beside the products with
/// the one in use as far as these reach.
class Stretches {
 public:
  explicit Stretches(const TiledScratch& in) : in_(in) {}

  /// What use() will be called with next.
  void announce(const TiledPanel* panels, Slice columns) {
    std::copy_n(panels, 2, next_);
    columns_ = columns;
    done_ = 0;
    announced_ = true;
  }
  /// Puts a stretch in use.
  void use(const TiledPanel* panels, Slice columns) {
    if (!announced_) announce(panels, columns);
    const int64_t width = columns_.last - columns_.first;
    for (const int64_t which : {0, 1}) {
      const int64_t done = std::clamp<int64_t>(done_ - which * width, 0, width);
      next_[which].unpack(columns_.first + done, width - done,
                          in_.stretches[1 - used_][which] + done * kPanelRows);
    }
    used_ = 1 - used_;
    width_ = width;
    announced_ = false;
  }
  /// Products of the one in use with two groups of rows, or with one: x1 is null.
  void multiply(const TileKernels& tiles, const uint16_t* x0, const uint16_t* x1, bool more, float* sums) {
    constexpr int64_t kBeside = kBesideGroups * kQuantColumns;
    const int64_t width = columns_.last - columns_.first;
    const bool beside = announced_ && x1 != nullptr && width_ == kTiledColumns && width % kBeside == 0 &&
                        done_ < 2 * width && next_[0].unpacks_beside() && next_[1].unpacks_beside();
    if (!beside) return tiles.product(in_.stretches[used_], x0, x1, width_, more, sums);
    const int64_t which = done_ / width, at = done_ % width;
    next_[which].unpack_beside(in_.stretches[used_], x0, x1, more, sums, columns_.first + at,
                               in_.stretches[1 - used_][which] + at * kPanelRows);
    done_ += kBeside;
  }

 private:
  const TiledScratch& in_;
  int used_ = 0;
  int64_t width_ = 0;
  // The next one: columns of the first panel that were unpacked, then of the second.
  bool announced_ = false;
  TiledPanel next_[2];
  Slice columns_{0, 0};
  int64_t done_ = 0;
};

/// The columns of rows row(0) .. row(rows - 1) as bf16, a group after the other.
template <typename Row>
void round_rows(const TileKernels& tiles, int64_t rows, Slice columns, Row row, uint16_t* out) {
  const int64_t width = columns.last - columns.first;
  for (int64_t i = 0; i < rows; i += kGroupRows, out += kGroupRows * width) {
    const int64_t count = std::min<int64_t>(kGroupRows, rows - i);
    const float* x[kGroupRows];
    for (int64_t k = 0; k < count; ++k) x[k] = row(i + k) + columns.first;
    tiles.round(x, static_cast<int>(count), width, out);
  }
}

/// sums (+)= the columns of two panels times those of all rounded rows, which begin with the first column's;
/// a group of them is `group` numbers. following(): the panels whose same columns come next, or null. last(i,
/// n): called before the last products of rows i .. i + n.
template <typename Following, typename Last>
void multiply_block(const TileKernels& tiles, Stretches& stretches, const TiledPanel* panels, Slice columns,
                    const uint16_t* rounded, int64_t group, int64_t rows, float* sums, Following following,
                    Last last) {
  const int64_t width = columns.last - columns.first;
  if (width == panels[0].columns() && panels[0].few(rows) && panels[1].few(rows)) {
    last(0, rows);
    for (const int which : {0, 1}) panels[which].multiply_few(rounded, rows, sums + which * kTileFloats);
    return;
  }
  const auto stretch = [&](int64_t first) {
    return Slice{first, std::min(first + kTiledColumns, columns.last)};
  };
  for (int64_t first = columns.first; first < columns.last; first += kTiledColumns) {
    stretches.use(panels, stretch(first));
    if (first + kTiledColumns < columns.last) {
      stretches.announce(panels, stretch(first + kTiledColumns));
    } else if (const TiledPanel* others = following()) {
      stretches.announce(others, stretch(columns.first));
    }
    const uint16_t* x = rounded + (first - columns.first) * kGroupRows;
    for (int64_t i = 0; i < rows; i += 2 * kGroupRows, x += 2 * group) {
      if (first + kTiledColumns >= columns.last) last(i, std::min<int64_t>(2 * kGroupRows, rows - i));
      stretches.multiply(tiles, x, i + kGroupRows < rows ? x + group : nullptr, first > 0,
                         sums + i / kGroupRows * 2 * kTileFloats);
    }
  }
}

/// Products on tiles: for each chunk of rows and each `step` of panels, open(the first, those of them that
/// are there, two panels), soon(the first, those there, first row, rows) for rows of which results come soon,
/// then take(the first, those there, first row, rows, sums with the one panel, with the other) for every
/// group of up to kGroupRows rows; sums are [kPanelRows][kGroupRows].
///
/// Where columns go in blocks, weights are unpacked once for many rows, and the sums of some steps wait for
/// the next block. A block is rounded again for the next of these steps, so nobody steals: who did would
/// round all blocks for a few panels.
template <typename Row, typename Open, typename Soon, typename Take>
void each_tiled(const TileKernels& tiles, int64_t columns, int64_t count, Row row, float* scratch,
                const PanelWork& work, int64_t step, Open open, Soon soon, Take take) {
  if (count == 0) return;
  constexpr bool kRounded = std::is_same_v<Row, RoundedRows>;
  const TiledChunk chunk = TiledChunk::of(count, columns);
  const TiledScratch in(scratch);
  const auto prepare = [&](int64_t begin, int64_t rows, Slice width) {
    if constexpr (kRounded) {
      // Others made them a moment ago: as many lines as a core can have on their way, and not one tile's.
      for (int64_t i = 0; i < rows; i += kGroupRows) {
        const uint16_t* x = row.data + (begin + i) * columns + width.first * kGroupRows;
        for (int64_t k = 0; k < (width.last - width.first) * kGroupRows; k += 32)
          __builtin_prefetch(x + k, 0, 2);
      }
    } else {
      round_rows(
          tiles, rows, width, [&](int64_t i) { return row(begin + i); }, in.rows);
    }
  };
  Stretches stretches(in);
  // The steps of [first, last), each while the weights of the next are unpacked; then done(step, panels
  // there).
  const auto multiply = [&](Slice panels, int64_t begin, int64_t rows, Slice width, float* sums,
                            int64_t sums_apart, auto done) {
    TiledPanel opened[2], next[2];
    const auto open_step = [&](int64_t p, TiledPanel* into) {
      open(p, std::min(step, panels.last - p), into);
    };
    open_step(panels.first, opened);
    const uint16_t* rounded = in.rows;
    int64_t group = (width.last - width.first) * kGroupRows;
    if constexpr (kRounded) {
      rounded = row.data + begin * columns + width.first * kGroupRows;
      group = columns * kGroupRows;
    }
    for (int64_t p = panels.first; p < panels.last; p += step, sums += sums_apart) {
      bool ahead = false;
      const int64_t there = std::min(step, panels.last - p);
      const auto following = [&]() -> const TiledPanel* {
        if (p + step >= panels.last) return nullptr;
        open_step(p + step, next);
        ahead = true;
        return next;
      };
      multiply_block(tiles, stretches, opened, width, rounded, group, rows, sums, following,
                     [&](int64_t i, int64_t some) {
                       if (width.last == columns) soon(p, there, begin + i, some);
                     });
      done(p, there, sums);
      if (p + step >= panels.last) break;
      if (!ahead) open_step(p + step, next);
      std::copy_n(next, 2, opened);
    }
  };
  const auto hand_on = [&](int64_t p, int64_t there, int64_t begin, int64_t rows, float* sums) {
    for (int64_t i = 0; i < rows; i += kGroupRows, sums += 2 * kTileFloats)
      take(p, there, begin + i, std::min<int64_t>(kGroupRows, rows - i), sums, sums + kTileFloats);
  };
  tiles.begin();
  if (chunk.columns == columns) {
    int64_t prepared = -1;
    work.each((count + chunk.rows - 1) / chunk.rows, step, [&](int64_t at, Slice panels) {
      const int64_t begin = at * chunk.rows, rows = std::min(count - begin, chunk.rows);
      if (at != prepared) prepare(begin, rows, {0, columns});
      prepared = at;
      multiply(panels, begin, rows, {0, columns}, in.sums, 0,
               [&](int64_t p, int64_t there, float* sums) { hand_on(p, there, begin, rows, sums); });
    });
  } else {
    const Slice panels = work.own();
    const int64_t most = kWaitingFloats / chunk.sums_floats() * step;
    for (int64_t begin = 0; begin < count; begin += chunk.rows) {
      const int64_t rows = std::min(count - begin, chunk.rows);
      for (int64_t from = panels.first; from < panels.last; from += most) {
        const int64_t end = std::min(panels.last, from + most);
        for (int64_t block = 0; block < columns; block += chunk.columns) {
          const Slice width{block, std::min(columns, block + chunk.columns)};
          prepare(begin, rows, width);
          multiply({from, end}, begin, rows, width, in.sums, chunk.sums_floats(),
                   [&](int64_t p, int64_t there, float* sums) {
                     if (width.last == columns) hand_on(p, there, begin, rows, sums);
                   });
        }
      }
    }
  }
  tiles.end();
}

}  // namespace sluice::backend::cpu
