// How the matrix ops use products: activation rows are quantised once by every worker for itself (cheaper
// than a meeting, except where an op sees those of many experts), panels of output rows are shared among the
// workers, in steps of many rows the rows, too, where that spares more than it costs (panel_plan.h), and rows
// pass by a panel in tiles. Where the tier has matrix tiles, steps of many rows go another way (tiled.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel.h"
#include "backend/cpu/packed_weights.h"
#include "backend/cpu/panel_plan.h"
#include "backend/cpu/simd/small.h"
#include "backend/cpu/tiled.h"

namespace sluice::backend::cpu {

/// Activation rows as products take them.
struct Inputs {
  const std::byte* data;
  int64_t stride_bytes;
  const void* operator()(int64_t row) const { return data + row * stride_bytes; }
};

/// The kernels of one op's products. tiles: null where the tier has none. rows: what the choice between both
/// goes by, a function of the step's rows alone, so that a row's result does not depend on what its
/// neighbours select.
struct Products {
  const MatmulKernels& panels;
  const TileKernels* tiles;
  int64_t rows;

  bool tiled(const Matrix& w) const {
    return tiles != nullptr && w.unpack != nullptr && rows >= w.tiled_from;
  }
  bool tiled(const Matrix& gate, const Matrix& up) const { return tiled(gate) && tiled(up); }
};
inline Products products(const Context& c, int64_t rows) {
  return {c.memory.kernels(), tile_kernels(c.isa), rows};
}
/// For `experts` matrices of which each row selects `used`. Those that get more rows than the average take
/// most of the time: half as many more are reckoned with.
inline Products expert_products(const Context& c, int64_t rows, int64_t used, int64_t experts) {
  return products(c, 3 * rows * used / (2 * experts));
}

/// Floats of scratch for `rows` inputs of an op: quantised blocks, or what products on tiles need.
inline int64_t input_floats(int64_t rows, int64_t columns) {
  static_assert(sizeof(QuantBlock) % sizeof(float) == 0);
  const int64_t blocks = (columns + kQuantColumns - 1) / kQuantColumns;
  const int64_t quantized = rows * blocks * static_cast<int64_t>(sizeof(QuantBlock) / sizeof(float));
  if (rows < kLeastTiled || tile_kernels(best_isa()) == nullptr) return quantized;
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

/// Inputs of several matrices, which may differ in type: a row is quantised when one of them wants it so for
/// the first time, and once, unless products on tiles come between.
class LazyInputs {
 public:
  /// Of scratch.
  static int64_t floats(int64_t rows, int64_t columns) {
    return input_floats(rows, columns) + (rows + 3) / 4;
  }

  /// Rows [of.first, of.last) of `in`, head by head, which are counted from 0 here. rounded: the inputs, all
  /// of these, where they are rows of bf16; else null.
  LazyInputs(const Rows<float>& in, const uint16_t* rounded, Slice of, int64_t columns, float* scratch)
      : in_(in),
        rounded_(rounded),
        of_(of),
        columns_(columns),
        scratch_(scratch),
        quantized_(reinterpret_cast<bool*>(scratch + input_floats(of.last - of.first, columns))) {
    forget();
  }
  const uint16_t* rounded() const { return rounded_; }
  /// Scratch for products on tiles. What was quantised there is lost.
  float* scratch() {
    forget();
    return scratch_;
  }
  /// Rows index(0) .. index(count - 1), as far as they are not yet.
  template <typename Index>
  void quantize(const MatmulKernels& kernels, int64_t count, Index index) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = index(i);
      if (!quantized_[r]) kernels.quantize(row(r), columns_, blocks(r));
      quantized_[r] = true;
    }
  }
  const float* row(int64_t i) const { return in_((of_.first + i) / in_.heads, (of_.first + i) % in_.heads); }
  const void* operator()(const Matrix& weight, int64_t i) const {
    if (weight.quantized) return blocks(i);
    return row(i);
  }

 private:
  QuantBlock* blocks(int64_t i) const {
    return reinterpret_cast<QuantBlock*>(scratch_) + i * (columns_ / kQuantColumns);
  }
  void forget() { std::fill_n(quantized_, of_.last - of_.first, false); }

  Rows<float> in_;
  const uint16_t* rounded_;
  Slice of_;
  int64_t columns_;
  float* scratch_;
  bool* quantized_;  // by row
};

/// Quantised rows that stay in a core's second-level cache while panels pass by.
inline int64_t rows_in_cache(int64_t columns) {
  constexpr int64_t kFloats = (512 << 10) / sizeof(float);
  return std::max<int64_t>(kTileRows, kFloats / input_floats(1, columns) / kTileRows * kTileRows);
}

/// For each `step` of panels: open(panel, those of them that are there), then tile(first row, up to `most`
/// rows, whether the panel was read before) for all of `count` rows, so that a panel's tiles follow each
/// other while it is in the first-level cache.
template <typename Open, typename Tile>
void each_tile(const PanelWork& work, int64_t step, int64_t most, int64_t count, int64_t columns, Open open,
               Tile tile) {
  const int64_t chunk = rows_in_cache(columns);
  work.each((count + chunk - 1) / chunk, step, [&](int64_t round, Slice panels) {
    const int64_t begin = round * chunk, end = std::min(count, begin + chunk);
    for (int64_t p = panels.first; p < panels.last; p += step) {
      open(p, std::min(step, panels.last - p));
      for (int64_t i = begin; i < end; i += most) tile(i, std::min(most, end - i), i > begin);
    }
  });
}

/// The sums of a tile of rows with a panel.
template <int kRows>
using TileSums = float[kRows * kPanelRows];

/// Rows of a tile, of `count` rows with this weight.
inline int64_t tile_rows(const Matrix& w, int64_t count) {
  return w.many_product != nullptr && count >= w.many_from ? kManyRows : kTileRows;
}

/// Panels that products of `count` rows take side by side of this weight.
inline int64_t panels_at_once(const Matrix& w, int64_t count) {
  return w.pair_product != nullptr && count > kTileRows ? 2 : 1;
}

/// out[p] = panel p of one or two, of weights like w, times x[0] .. x[rows - 1], up to tile_rows of them. Two
/// are taken together once they have been read (again): memory gives one stream quicker than two.
template <size_t n>
void multiply_panels(const Matrix& w, const Panel* panels, int64_t number, const void* const* x, int64_t rows,
                     float (*out)[n], bool again) {
  if (rows > kTileRows) {
    for (int64_t p = 0; p < number; ++p) w.multiply_many(panels[p], x, rows, out[p], again);
    return;
  }
  int64_t done = 0;
  if (again && number == 2 && w.pair_product != nullptr) {
    const uint8_t* packed[2] = {panels[0].packed, panels[1].packed};
    for (; done + kPairRows <= rows; done += kPairRows) {
      float* sums[2] = {out[0] + done * kPanelRows, out[1] + done * kPanelRows};
      w.pair_product(packed, w.columns, x + done, sums);
    }
  }
  if (done == rows) return;
  for (int64_t p = 0; p < number; ++p)
    w.multiply(panels[p], x + done, rows - done, out[p] + done * kPanelRows, again);
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

/// Outputs of many rows lie in none of the near caches, and a panel writes one line of each: they are asked
/// for before its products.
inline void ask_to_write(const float* at) { __builtin_prefetch(at, 1, 3); }
template <typename Store>
void ask(const Store& store, int64_t first, int64_t rows, int64_t n) {
  if constexpr (requires { store.ask(first, n); }) {
    for (int64_t i = 0; i < rows; ++i) store.ask(first + i, n);
  }
}

/// A store to row i of the outputs at(i), which are the products or, with addends, add(i) + products. Others
/// do what they like with what they are given.
template <typename At, typename Add = std::nullptr_t>
struct StoreTo {
  At at;
  Add add = {};
  static constexpr bool kAdds = !std::is_same_v<Add, std::nullptr_t>;

  void ask(int64_t i, int64_t n) const {
    ask_to_write(at(i) + n);
    if constexpr (kAdds) __builtin_prefetch(add(i) + n);
  }

  template <typename Count>
  void operator()(int64_t i, int64_t n, const float* values, Count count) const {
    if constexpr (kAdds) {
      const float* addend = add(i) + n;
      float* to = at(i) + n;
      for (int64_t j = 0; j < count; ++j) to[j] = addend[j] + values[j];
    } else {
      std::memcpy(at(i) + n, values, static_cast<size_t>(count) * sizeof(float));
    }
  }
};
template <typename At>
StoreTo(At) -> StoreTo<At>;
template <typename At, typename Add>
StoreTo(At, Add) -> StoreTo<At, Add>;

/// A store that adds weight(i) * products to row i of the outputs sum(i).
template <typename Sum, typename Weight>
struct AddTo {
  Sum sum;
  Weight weight;

  void ask(int64_t i, int64_t n) const { ask_to_write(sum(i) + n); }
  template <typename Count>
  void operator()(int64_t i, int64_t n, const float* values, Count count) const {
    float* to = sum(i) + n;
    const float by = weight(i);
    for (int64_t j = 0; j < count; ++j) to[j] += by * values[j];
  }
};
template <typename Sum, typename Weight>
AddTo(Sum, Weight) -> AddTo<Sum, Weight>;

/// A store to RoundedRows of so many columns.
struct RoundTo {
  uint16_t* data;
  int64_t columns;
};

/// The same for a tile of sums, [kPanelRows][kGroupRows], of up to kGroupRows rows.
template <typename Store>
void store_tile(const TileKernels& tiles, const Store& store, int64_t first, int64_t rows, int64_t n,
                const float* sums, int64_t outputs) {
  if constexpr (std::is_same_v<Store, RoundTo>) {
    const auto half = static_cast<int>(n / kPanelRows % 2);
    uint16_t* group = store.data + first * store.columns;
    return tiles.round_sums(sums, half, group + (n - half * kPanelRows) * kGroupRows);
  } else if constexpr (requires { store.at(first); }) {
    if (n + kPanelRows <= outputs) {
      float* to[kGroupRows];
      const float* addends[kGroupRows];
      for (int64_t i = 0; i < rows; ++i) {
        to[i] = store.at(first + i) + n;
        if constexpr (Store::kAdds) addends[i] = store.add(first + i) + n;
      }
      return tiles.write(sums, to, Store::kAdds ? addends : nullptr, static_cast<int>(rows));
    }
  } else if constexpr (requires { store.weight(first); }) {
    if (n + kPanelRows <= outputs) {
      float* to[kGroupRows];
      float weights[kGroupRows];
      for (int64_t i = 0; i < rows; ++i) {
        to[i] = store.sum(first + i) + n;
        weights[i] = store.weight(first + i);
      }
      return tiles.add(sums, to, weights, static_cast<int>(rows));
    }
  }
  if constexpr (!std::is_same_v<Store, RoundTo>) {
    alignas(64) float values[kTileFloats];
    tiles.transpose(sums, values);
    store_rows(store, first, rows, n, values, outputs);
  }
}

/// Asks for what store_tile touches, a moment before: sums that others add to, residuals. Plain results pass
/// by the caches.
template <typename Store>
void ask_tile(const Store& store, int64_t first, int64_t rows, int64_t n) {
  if constexpr (requires { store.weight(first); }) {
    ask(store, first, rows, n);
  } else if constexpr (requires { store.at(first); }) {
    if constexpr (Store::kAdds) {
      for (int64_t i = first; i < first + rows; ++i) __builtin_prefetch(store.add(i) + n);
    }
  }
}

/// The products of matrix m, its `panels` alone, with count inputs x(i): store(i, n, values, outputs) for the
/// outputs [n, n + outputs) of input i, outputs <= kPanelRows.
template <typename X, typename Store>
void multiply(const Matrix& w, int64_t m, const PanelWork& work, int64_t count, X x, Store store) {
  const int64_t step = panels_at_once(w, count);
  Panel opened[2]{};
  int64_t panel = 0, number = 0;
  const auto open = [&](int64_t p, int64_t there) {
    panel = p, number = there;
    for (int64_t k = 0; k < number; ++k) opened[k] = w.open(m, p + k, count);
  };
  const int64_t most = tile_rows(w, count);
  each_tile(work, step, most, count, w.columns, open, [&](int64_t first, int64_t rows, bool again) {
    alignas(64) TileSums<kManyRows> out[2];
    const void* rows_x[kManyRows];
    for (int64_t i = 0; i < rows; ++i) rows_x[i] = x(first + i);
    for (int64_t k = 0; k < number; ++k) ask(store, first, rows, (panel + k) * kPanelRows);
    multiply_panels(w, opened, number, rows_x, rows, out, again);
    for (int64_t k = 0; k < number; ++k)
      store_rows(store, first, rows, (panel + k) * kPanelRows, out[k], w.rows);
  });
}

/// The products of multiply() on tiles, with rows at row(i) or RoundedRows.
template <typename Row, typename Store>
void multiply_tiled(const TileKernels& tiles, const Matrix& w, int64_t m, const PanelWork& work,
                    int64_t count, Row row, float* scratch, Store store) {
  // Beside an odd panel at the end stands the same again.
  each_tiled(
      tiles, w.columns, count, row, scratch, work, 2,
      [&](int64_t p, int64_t there, TiledPanel* opened) {
        opened[0].open(w, m, p), opened[1].open(w, m, p + there - 1);
      },
      [&](int64_t p, int64_t there, int64_t first, int64_t rows) {
        for (int64_t k = 0; k < there; ++k) ask_tile(store, first, rows, (p + k) * kPanelRows);
      },
      [&](int64_t p, int64_t there, int64_t first, int64_t rows, const float* one, const float* other) {
        store_tile(tiles, store, first, rows, p * kPanelRows, one, w.rows);
        if (there == 2) store_tile(tiles, store, first, rows, (p + 1) * kPanelRows, other, w.rows);
      });
}

/// The products of multiply() with inputs at row(i), which are prepared in scratch first in the way that the
/// weight wants; or with rounded ones, unless they are null.
template <typename Row, typename Store>
void multiply_rows(const Products& products, const Matrix& w, int64_t m, const PanelWork& work, int64_t count,
                   Row row, const uint16_t* rounded, float* scratch, Store store) {
  if (rounded != nullptr)
    return multiply_tiled(*products.tiles, w, m, work, count, RoundedRows{rounded}, scratch, store);
  if (products.tiled(w)) return multiply_tiled(*products.tiles, w, m, work, count, row, scratch, store);
  if (w.quantized) {
    return multiply(w, m, work, count, quantized(products.panels, count, w.columns, row, scratch), store);
  }
  multiply(w, m, work, count, row, store);
}

/// What becomes of a gate's and an up matrix's products: they are scaled, biases are added, and one
/// value is made of both.
struct Gated {
  SwigluForm form = {};
  decltype(SmallKernels::swiglu) swiglu = nullptr;  ///< null: the form is that of silu_mul
  /// Of the matrices' rows, with room for whole panels; null: none.
  const float *gate_bias = nullptr, *up_bias = nullptr;
  float gate_scale = 1, up_scale = 1;

  static Gated of(const program::Swiglu& form, Isa isa) {
    if (form.is_plain()) return {};
    return {.form = {form.alpha, form.limit, form.shift}, .swiglu = small_kernels(isa).swiglu};
  }
  /// Of the outputs from n on, to the place of the gate's products: [rows][kPanelRows], or where they come
  /// from tiles [kPanelRows][kGroupRows].
  void finish(const MatmulKernels& kernels, int64_t n, int64_t rows, float* gates, float* ups) const {
    scale(rows * kPanelRows, gates, ups);
    if (gate_bias != nullptr) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int j = 0; j < kPanelRows; ++j) gates[i * kPanelRows + j] += gate_bias[n + j];
        for (int j = 0; j < kPanelRows; ++j) ups[i * kPanelRows + j] += up_bias[n + j];
      }
    }
    activate(kernels, rows * kPanelRows, gates, ups, gates);
  }
  void finish_tile(const MatmulKernels& kernels, int64_t n, float* gates, float* ups) const {
    scale(kTileFloats, gates, ups);
    if (gate_bias != nullptr) {
      for (int j = 0; j < kPanelRows; ++j) {
        for (int i = 0; i < kGroupRows; ++i) gates[j * kGroupRows + i] += gate_bias[n + j];
        for (int i = 0; i < kGroupRows; ++i) ups[j * kGroupRows + i] += up_bias[n + j];
      }
    }
    activate(kernels, kTileFloats, gates, ups, gates);
  }
  void scale(int64_t count, float* gates, float* ups) const {
    if (gate_scale == 1 && up_scale == 1) return;
    for (int64_t i = 0; i < count; ++i) gates[i] *= gate_scale, ups[i] *= up_scale;
  }
  /// One value of both for `count` of them, a multiple of kPanelRows.
  void activate(const MatmulKernels& kernels, int64_t count, const float* gates, const float* ups,
                float* out) const {
    swiglu == nullptr ? kernels.silu_mul(gates, ups, count, out) : swiglu(gates, ups, form, count, out);
  }
};

/// Gated products on tiles, of inputs at row(i) or RoundedRows.
template <typename Row, typename Store>
void multiply_gated_tiled(const Products& products, const Matrix& gate, const Matrix& up, int64_t m,
                          const PanelWork& work, int64_t count, Row row, float* scratch, const Gated& gated,
                          Store store) {
  each_tiled(
      *products.tiles, gate.columns, count, row, scratch, work, 1,
      [&](int64_t p, int64_t, TiledPanel* opened) { opened[0].open(gate, m, p), opened[1].open(up, m, p); },
      [&](int64_t p, int64_t, int64_t first, int64_t rows) { ask_tile(store, first, rows, p * kPanelRows); },
      [&](int64_t p, int64_t, int64_t first, int64_t rows, float* gates, float* ups) {
        gated.finish_tile(products.panels, p * kPanelRows, gates, ups);
        store_tile(*products.tiles, store, first, rows, p * kPanelRows, gates, gate.rows);
      });
}

/// Gated products in the same way, of the inputs index(0) .. index(count - 1) of x; to rounded rows unless
/// these are null.
template <typename Index, typename Store>
void multiply_gated(const Products& products, const Matrix& gate, const Matrix& up, int64_t m,
                    const PanelWork& work, int64_t count, LazyInputs& x, Index index, const Gated& gated,
                    uint16_t* rounded, Store store) {
  const MatmulKernels& kernels = products.panels;
  if (products.tiled(gate, up)) {
    const auto tiled = [&](auto row, auto to) {
      multiply_gated_tiled(products, gate, up, m, work, count, row, x.scratch(), gated, to);
    };
    const auto from = [&](auto row) {
      rounded != nullptr ? tiled(row, RoundTo{rounded, gate.rows}) : tiled(row, store);
    };
    if (x.rounded() != nullptr) return from(RoundedRows{x.rounded()});
    return from([&](int64_t i) { return x.row(index(i)); });
  }
  if (gate.quantized || up.quantized) x.quantize(kernels, count, index);
  const auto multiply_tile = [&](const Matrix& w, const Panel* opened, int64_t number, int64_t first,
                                 int64_t rows, auto* out, bool again) {
    const void* rows_x[kManyRows];
    for (int64_t i = 0; i < rows; ++i) rows_x[i] = x(w, index(first + i));
    multiply_panels(w, opened, number, rows_x, rows, out, again);
  };
  const auto finish_tile = [&](int64_t panel, int64_t first, int64_t rows, float* gates, float* ups) {
    gated.finish(kernels, panel * kPanelRows, rows, gates, ups);
    store_rows(store, first, rows, panel * kPanelRows, gates, gate.rows);
  };
  if (count <= kTileRows) {
    // Every panel is read once. Where both matrices lie in one stream they take turns. Elsewhere some panels
    // of the one come before those of the other, because a processor that fetches ahead by itself follows one
    // stream and loses two that take turns at every panel.
    constexpr int64_t kTurn = 8;
    alignas(64) TileSums<kTileRows> gates[kTurn], ups[kTurn];
    const bool one_stream = gate.panel_stride > gate.panel_bytes;
    work.each(1, 1, [&](int64_t, Slice panels) {
      for (int64_t begin = panels.first; begin < panels.last; begin += kTurn) {
        const int64_t number = std::min(kTurn, panels.last - begin);
        const auto multiply_one = [&](const Matrix& w, int64_t i, TileSums<kTileRows>* out) {
          const Panel opened = w.open(m, begin + i, count);
          multiply_tile(w, &opened, 1, 0, count, out + i, false);
        };
        for (int64_t i = 0; i < number; ++i) {
          multiply_one(gate, i, gates);
          if (one_stream) multiply_one(up, i, ups);
        }
        for (int64_t i = 0; i < number && !one_stream; ++i) multiply_one(up, i, ups);
        for (int64_t i = 0; i < number; ++i) finish_tile(begin + i, 0, count, gates[i], ups[i]);
      }
    });
    return;
  }
  alignas(64) TileSums<kManyRows> sums[2];  // of gate and up
  Panel opened[2]{};
  int64_t panel = 0;
  const auto open = [&](int64_t p, int64_t) {
    opened[0] = gate.open(m, p, count), opened[1] = up.open(m, p, count);
    panel = p;
  };
  const bool alike = gate.type == up.type;
  const int64_t most = std::min(tile_rows(gate, count), tile_rows(up, count));
  each_tile(work, 1, most, count, gate.columns, open, [&](int64_t first, int64_t rows, bool again) {
    ask(store, first, rows, panel * kPanelRows);
    multiply_tile(gate, opened, alike ? 2 : 1, first, rows, sums, again);
    if (!alike) multiply_tile(up, opened + 1, 1, first, rows, sums + 1, again);
    finish_tile(panel, first, rows, sums[0], sums[1]);
  });
}

}  // namespace sluice::backend::cpu
