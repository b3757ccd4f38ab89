// How the matrix ops use products: activation rows are quantised once by every worker for itself (cheaper
// than a meeting), panels of output rows are shared among the workers, and rows pass by a panel in tiles.
// Where the tier has matrix tiles, steps of many rows go another way: activations become bf16, and so does
// each panel, once for all rows.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/cpu/kernel.h"
#include "backend/cpu/packed_weights.h"

namespace sluice::backend::cpu {

/// Activation rows as products take them.
struct Inputs {
  const std::byte* data;
  int64_t stride_bytes;
  const void* operator()(int64_t row) const { return data + row * stride_bytes; }
};

/// Scratch for tiles may begin anywhere in a cache line.
inline constexpr int64_t kLineFloats = 64 / sizeof(float);

/// Rows of a step from which products go through matrix tiles. The step decides, not the rows of an expert,
/// so that a row's result does not depend on what its neighbours select.
inline constexpr int64_t kTiledStep = 32;

/// The kernels of one op's products. tiles: null where the tier has none or the step has few rows.
struct Products {
  const MatmulKernels& panels;
  const TileKernels* tiles;
};
inline Products products(const Context& c, int64_t rows) {
  return {c.memory.kernels(), rows >= kTiledStep ? tile_kernels(c.isa) : nullptr};
}

/// Whole groups of kGroupRows.
inline int64_t whole_groups(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows * kGroupRows; }

/// Rows that are bf16 at once, at most: what leaves the second-level cache room for sums.
inline int64_t most_tiled_rows(int64_t columns) {
  constexpr int64_t kBytes = 1536 << 10;
  return std::max<int64_t>(2, kBytes / (2 * columns) / kGroupRows) * kGroupRows;
}

/// Rows of the equal chunks that `rows` go through tiles in.
inline int64_t tiled_chunk(int64_t rows, int64_t columns) {
  const int64_t most = most_tiled_rows(columns), chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return whole_groups((rows + chunks - 1) / chunks);
}

/// Floats of scratch for products on tiles of up to `rows` rows: two unpacked panels, sums and bf16 rows.
inline int64_t tiled_floats(int64_t rows, int64_t columns) {
  const int64_t chunk = std::min(whole_groups(rows), most_tiled_rows(columns));
  return kPanelRows * kTiledColumns + chunk / kGroupRows * 2 * kTileFloats + chunk * columns / 2 +
         kLineFloats;
}

/// Floats of scratch for `rows` inputs of an op: quantised blocks, or what products on tiles need.
inline int64_t input_floats(int64_t rows, int64_t columns) {
  static_assert(sizeof(QuantBlock) % sizeof(float) == 0);
  const int64_t blocks = (columns + kQuantColumns - 1) / kQuantColumns;
  const int64_t quantized = rows * blocks * static_cast<int64_t>(sizeof(QuantBlock) / sizeof(float));
  if (rows < kTiledStep) return quantized;
  return std::max(quantized, tiled_floats(rows, blocks * kQuantColumns));
}

/// Rows [columns] at row(0) .. row(count - 1), quantised into scratch (input_floats).
template <typename Row>
Inputs quantized(const MatmulKernels& kernels, int64_t count, int64_t columns, Row row, float* scratch) {
  auto* blocks = reinterpret_cast<QuantBlock*>(scratch);
  const int64_t per_row = columns / kQuantColumns;
  for (int64_t i = 0; i < count; ++i) kernels.quantize(row(i), columns, blocks + i * per_row);
  return {reinterpret_cast<const std::byte*>(blocks), per_row * static_cast<int64_t>(sizeof(QuantBlock))};
}

/// The inputs of gate and up matrices, which may differ in type: quantised once, when one of them wants them
/// so.
class GatedInputs {
 public:
  GatedInputs(const Products& products, const Rows<float>& in, int64_t count, int64_t columns, float* scratch)
      : products_(products), in_(in), count_(count), columns_(columns), scratch_(scratch) {}
  const Products& products() const { return products_; }
  float* scratch() const { return scratch_; }
  bool tiled(const Matrix& gate, const Matrix& up) const {
    return products_.tiles != nullptr && gate.unpack != nullptr && up.unpack != nullptr;
  }
  void prepare(const Matrix& gate, const Matrix& up) {
    if (blocks_.data == nullptr && !tiled(gate, up) && (gate.quantized || up.quantized)) {
      blocks_ = quantized(products_.panels, count_, columns_, in_, scratch_);
    }
  }
  const float* row(int64_t row) const { return in_(row); }
  const void* operator()(const Matrix& weight, int64_t row) const {
    return weight.quantized ? blocks_(row) : in_(row);
  }

 private:
  const Products products_;
  const Rows<float>& in_;
  int64_t count_, columns_;
  float* scratch_;
  Inputs blocks_{nullptr, 0};
};

/// Quantised rows that stay in a core's second-level cache while panels pass by.
inline int64_t rows_in_cache(int64_t columns) {
  constexpr int64_t kFloats = (512 << 10) / sizeof(float);
  return std::max<int64_t>(kTileRows, kFloats / input_floats(1, columns) / kTileRows * kTileRows);
}

/// For each of `panels`: open(panel), then tile(first row, rows) for all of `count` rows, so that a panel's
/// tiles follow each other while it is in the first-level cache.
template <typename Open, typename Tile>
void each_tile(Slice panels, int64_t count, int64_t columns, Open open, Tile tile) {
  const int64_t chunk = rows_in_cache(columns);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(count, begin + chunk);
    for (int64_t p = panels.first; p < panels.last; ++p) {
      open(p);
      for (int64_t i = begin; i < end; i += kTileRows) tile(i, std::min<int64_t>(kTileRows, end - i));
    }
  }
}

/// store(row, n, values, count) for `rows` rows of a panel's outputs from n on; count is a constant where the
/// panel is whole.
template <typename Store>
void store_rows(Store store, int64_t first, int64_t rows, int64_t n, const float* values, int64_t outputs) {
  const auto each = [&](auto count) {
    for (int64_t i = 0; i < rows; ++i) store(first + i, n, values + i * kPanelRows, count);
  };
  if (n + kPanelRows <= outputs) {
    each(std::integral_constant<int64_t, kPanelRows>{});
  } else {
    each(outputs - n);
  }
}

/// A store to row i of the outputs at(i), which are the products or, with addends, add(i) + products. Others
/// do what they like with what they are given.
template <typename At, typename Add = std::nullptr_t>
struct StoreTo {
  At at;
  Add add = {};
  static constexpr bool kAdds = !std::is_same_v<Add, std::nullptr_t>;

  template <typename Count>
  void operator()(int64_t i, int64_t n, const float* values, Count count) const {
    if constexpr (kAdds) {
      const float* addend = add(i) + n;
      float* to = at(i) + n;
      for (int64_t j = 0; j < count; ++j) to[j] = addend[j] + values[j];
    } else {
      std::copy_n(values, int64_t{count}, at(i) + n);
    }
  }
};
template <typename At>
StoreTo(At) -> StoreTo<At>;
template <typename At, typename Add>
StoreTo(At, Add) -> StoreTo<At, Add>;

/// The same for a tile of sums, [kPanelRows][kGroupRows], of up to kGroupRows rows.
template <typename Store>
void store_tile(const TileKernels& tiles, const Store& store, int64_t first, int64_t rows, int64_t n,
                const float* sums, int64_t outputs) {
  if constexpr (requires { store.at(first); }) {
    if (n + kPanelRows <= outputs) {
      float* to[kGroupRows];
      const float* addends[kGroupRows];
      for (int64_t i = 0; i < rows; ++i) {
        to[i] = store.at(first + i) + n;
        if constexpr (Store::kAdds) addends[i] = store.add(first + i) + n;
      }
      return tiles.write(sums, to, Store::kAdds ? addends : nullptr, static_cast<int>(rows));
    }
  }
  alignas(64) float values[kTileFloats];
  tiles.transpose(sums, values);
  store_rows(store, first, rows, n, values, outputs);
}

/// The products of matrix m, its `panels` alone, with count inputs x(i): store(i, n, values, outputs) for the
/// outputs [n, n + outputs) of input i, outputs <= kPanelRows.
template <typename X, typename Store>
void multiply(const Matrix& w, int64_t m, Slice panels, int64_t count, X x, Store store) {
  const uint8_t* panel = nullptr;
  int64_t n = 0;
  const auto open = [&](int64_t p) {
    panel = w.panel(m, p);
    n = p * kPanelRows;
  };
  each_tile(panels, count, w.columns, open, [&](int64_t first, int64_t rows) {
    alignas(64) float out[kTileRows * kPanelRows];
    const void* rows_x[kTileRows];
    for (int64_t i = 0; i < rows; ++i) rows_x[i] = x(first + i);
    w.product(panel, w.columns, rows_x, static_cast<int>(rows), out, w.prefetch);
    store_rows(store, first, rows, n, out, w.rows);
  });
}

/// Scratch of products on tiles: two panels, unpacked a stretch of columns at a time, the sums of a chunk of
/// rows with both, and those rows.
struct TiledScratch {
  uint16_t* panels[2];
  float* sums;
  uint16_t* rows;

  TiledScratch(float* scratch, int64_t chunk) {
    // Tiles are loaded line by line: the scratch of a worker begins at a page, but this may be its middle.
    auto* at = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
    constexpr int64_t kPanelFloats = kPanelRows * kTiledColumns / 2;
    panels[0] = reinterpret_cast<uint16_t*>(at);
    panels[1] = reinterpret_cast<uint16_t*>(at + kPanelFloats);
    sums = at + 2 * kPanelFloats;
    rows = reinterpret_cast<uint16_t*>(sums + chunk / kGroupRows * 2 * kTileFloats);
  }
};

/// One of the two panels of a product on tiles: read once a step, then unpacked a stretch at a time.
class TiledPanel {
 public:
  void open(const Matrix& weight, int64_t matrix, int64_t panel) {
    weight_ = &weight;
    data_ = weight.panel(matrix, panel);
  }
  void unpack(int64_t first, int64_t columns, uint16_t* into) const {
    weight_->unpack(data_ + weight_->panel_bytes * first / weight_->columns, columns, into,
                    weight_->prefetch);
  }

 private:
  const Matrix* weight_ = nullptr;
  const uint8_t* data_ = nullptr;
};

/// Products on tiles: for each chunk of rows and each of `steps`, open(step, two panels), then take(step,
/// first row, rows, sums with the one panel, with the other) for every group of up to kGroupRows rows; sums
/// are [kPanelRows][kGroupRows].
template <typename Row, typename Open, typename Take>
void each_tiled(const TileKernels& tiles, int64_t columns, int64_t count, Row row, float* scratch,
                Slice steps, Open open, Take take) {
  if (count == 0 || steps.first >= steps.last) return;
  const int64_t chunk = tiled_chunk(count, columns);
  const TiledScratch in(scratch, chunk);
  tiles.begin();
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t rows = std::min(count - begin, chunk);
    const auto group = [&](int64_t i) { return in.rows + i * columns; };
    const auto rows_of = [&](int64_t i) { return std::min<int64_t>(kGroupRows, rows - i); };
    for (int64_t i = 0; i < rows; i += kGroupRows) {
      const float* x[kGroupRows];
      for (int64_t k = 0; k < rows_of(i); ++k) x[k] = row(begin + i + k);
      tiles.round(x, static_cast<int>(rows_of(i)), columns, group(i));
    }
    for (int64_t step = steps.first; step < steps.last; ++step) {
      TiledPanel panels[2];
      open(step, panels);
      for (int64_t first = 0; first < columns; first += kTiledColumns) {
        const int64_t stretch = std::min(kTiledColumns, columns - first);
        for (const int which : {0, 1}) panels[which].unpack(first, stretch, in.panels[which]);
        for (int64_t i = 0; i < rows; i += 2 * kGroupRows) {
          const uint16_t* x = group(i) + first * kGroupRows;
          tiles.product(in.panels, x, i + kGroupRows < rows ? x + kGroupRows * columns : nullptr, stretch,
                        first > 0, in.sums + i / kGroupRows * 2 * kTileFloats);
        }
      }
      for (int64_t i = 0; i < rows; i += kGroupRows) {
        float* sums = in.sums + i / kGroupRows * 2 * kTileFloats;
        take(step, begin + i, rows_of(i), sums, sums + kTileFloats);
      }
    }
  }
  tiles.end();
}

/// The same for inputs at row(i), which are prepared in scratch first in the way that the weight wants.
template <typename Row, typename Store>
void multiply_rows(const Products& products, const Matrix& w, int64_t m, Slice panels, int64_t count, Row row,
                   float* scratch, Store store) {
  if (products.tiles != nullptr && w.unpack != nullptr) {
    // Two panels a step; beside an odd one at the end stands the same again.
    const auto panel_of = [&](int64_t step, int which) { return panels.first + 2 * step + which; };
    each_tiled(
        *products.tiles, w.columns, count, row, scratch, {0, (panels.last - panels.first + 1) / 2},
        [&](int64_t step, TiledPanel* opened) {
          for (const int which : {0, 1})
            opened[which].open(w, m, std::min(panel_of(step, which), panels.last - 1));
        },
        [&](int64_t step, int64_t first, int64_t rows, const float* one, const float* other) {
          for (const int which : {0, 1}) {
            const int64_t p = panel_of(step, which), n = p * kPanelRows;
            if (p >= panels.last) break;
            store_tile(*products.tiles, store, first, rows, n, which == 0 ? one : other, w.rows);
          }
        });
    return;
  }
  if (w.quantized) {
    return multiply(w, m, panels, count, quantized(products.panels, count, w.columns, row, scratch), store);
  }
  multiply(w, m, panels, count, row, store);
}

/// silu(gate x) * (up x) in the same way, of the inputs index(0) .. index(count - 1) of x.
template <typename Index, typename Store>
void multiply_gated(const Matrix& gate, const Matrix& up, int64_t m, Slice panels, int64_t count,
                    const GatedInputs& x, Index index, Store store) {
  const MatmulKernels& kernels = x.products().panels;
  if (x.tiled(gate, up)) {
    const TileKernels& tiles = *x.products().tiles;
    each_tiled(
        tiles, gate.columns, count, [&](int64_t i) { return x.row(index(i)); }, x.scratch(), panels,
        [&](int64_t p, TiledPanel* opened) { opened[0].open(gate, m, p), opened[1].open(up, m, p); },
        [&](int64_t p, int64_t first, int64_t rows, float* gates, const float* ups) {
          kernels.silu_mul(gates, ups, kTileFloats, gates);
          store_tile(tiles, store, first, rows, p * kPanelRows, gates, gate.rows);
        });
    return;
  }
  const uint8_t *gate_panel = nullptr, *up_panel = nullptr;
  int64_t panel = 0;
  const auto open = [&](int64_t p) {
    gate_panel = gate.panel(m, p), up_panel = up.panel(m, p);
    panel = p;
  };
  each_tile(panels, count, gate.columns, open, [&](int64_t first, int64_t rows) {
    alignas(64) float gates[kTileRows * kPanelRows], ups[kTileRows * kPanelRows];
    const void *gate_x[kTileRows], *up_x[kTileRows];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t from = index(first + i);
      gate_x[i] = x(gate, from), up_x[i] = x(up, from);
    }
    gate.product(gate_panel, gate.columns, gate_x, static_cast<int>(rows), gates, gate.prefetch);
    up.product(up_panel, up.columns, up_x, static_cast<int>(rows), ups, up.prefetch);
    kernels.silu_mul(gates, ups, rows * kPanelRows, gates);
    store_rows(store, first, rows, panel * kPanelRows, gates, gate.rows);
  });
}

/// Shares panels of many matrices that see different numbers of rows: a panel costs its reading and its rows,
/// and each worker takes an equal stretch of the whole cost.
class PanelShares {
 public:
  PanelShares(int worker, int workers, bool tiled = false)
      : worker_(worker), workers_(workers), tiled_(tiled) {}
  /// First every matrix is counted, then every one is asked for in the same order.
  void count(int64_t panels, int64_t rows) { total_ += panels * cost(rows); }
  Slice take(int64_t panels, int64_t rows) {
    if (rows == 0) return {0, 0};
    const int64_t begin = total_ * worker_ / workers_ - position_,
                  end = total_ * (worker_ + 1) / workers_ - position_;
    const int64_t each = cost(rows);
    position_ += panels * each;
    const auto first_from = [&](int64_t at) {
      return std::clamp<int64_t>((at + each - 1) / each, 0, panels);
    };
    return {begin <= 0 ? 0 : first_from(begin), end <= 0 ? 0 : first_from(end)};
  }

 private:
  /// Reading a panel takes as long as computing some rows of it; unpacking it for tiles as some groups.
  int64_t cost(int64_t rows) const {
    if (rows == 0) return 0;
    return tiled_ ? whole_groups(rows) + 4 * kGroupRows : rows + 4;
  }
  int worker_, workers_;
  bool tiled_;
  int64_t total_ = 0, position_ = 0;
};

}  // namespace sluice::backend::cpu
