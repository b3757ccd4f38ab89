// How the matrix ops use products: activation rows are quantised once by every worker for itself (cheaper
// than a meeting), panels of output rows are shared among the workers, and rows pass by a panel in tiles.
#pragma once

#include <algorithm>

#include "backend/cpu/kernel.h"
#include "backend/cpu/packed_weights.h"

namespace sluice::backend::cpu {

/// Activation rows as products take them.
struct Inputs {
  const std::byte* data;
  int64_t stride_bytes;
  const void* operator()(int64_t row) const { return data + row * stride_bytes; }
};

/// Floats of scratch that `rows` quantised rows take.
inline int64_t quant_floats(int64_t rows, int64_t columns) {
  static_assert(sizeof(QuantBlock) % sizeof(float) == 0);
  const int64_t blocks = (columns + kQuantColumns - 1) / kQuantColumns;
  return rows * blocks * static_cast<int64_t>(sizeof(QuantBlock) / sizeof(float));
}

/// Rows [columns] at row(0) .. row(count - 1), quantised into scratch (quant_floats).
template <typename Row>
Inputs quantized(const MatmulKernels& kernels, int64_t count, int64_t columns, Row row, float* scratch) {
  auto* blocks = reinterpret_cast<QuantBlock*>(scratch);
  const int64_t per_row = columns / kQuantColumns;
  for (int64_t i = 0; i < count; ++i) kernels.quantize(row(i), columns, blocks + i * per_row);
  return {reinterpret_cast<const std::byte*>(blocks), per_row * static_cast<int64_t>(sizeof(QuantBlock))};
}

/// The same rows for gate and up matrices, which may differ in type: quantised once, when one of them wants
/// them so.
class GatedInputs {
 public:
  GatedInputs(const MatmulKernels& kernels, const Rows<float>& in, int64_t count, int64_t columns,
              float* scratch)
      : kernels_(kernels), in_(in), count_(count), columns_(columns), scratch_(scratch) {}
  void prepare(const Matrix& gate, const Matrix& up) {
    if (blocks_.data == nullptr && (gate.quantized || up.quantized)) {
      blocks_ = sluice::backend::cpu::quantized(kernels_, count_, columns_, in_, scratch_);
    }
  }
  const void* operator()(const Matrix& weight, int64_t row) const {
    return weight.quantized ? blocks_(row) : in_(row);
  }

 private:
  const MatmulKernels& kernels_;
  const Rows<float>& in_;
  int64_t count_, columns_;
  float* scratch_;
  Inputs blocks_{nullptr, 0};
};

/// Quantised rows that stay in a core's second-level cache while panels pass by.
inline int64_t rows_in_cache(int64_t columns) {
  constexpr int64_t kFloats = (512 << 10) / sizeof(float);
  return std::max<int64_t>(kTileRows, kFloats / quant_floats(1, columns) / kTileRows * kTileRows);
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

/// The products of matrix m, its `panels` alone, with count inputs x(i): store(i, n, values, outputs) for the
/// outputs [n, n + outputs) of input i, outputs <= kPanelRows.
template <typename X, typename Store>
void multiply(const Matrix& w, int64_t m, Slice panels, int64_t count, X x, Store store) {
  const uint8_t* panel = nullptr;
  int64_t n = 0, outputs = 0;
  const auto open = [&](int64_t p) {
    panel = w.panel(m, p);
    n = p * kPanelRows, outputs = std::min<int64_t>(kPanelRows, w.rows - n);
  };
  each_tile(panels, count, w.columns, open, [&](int64_t first, int64_t rows) {
    alignas(64) float out[kTileRows * kPanelRows];
    const void* rows_x[kTileRows];
    for (int64_t i = 0; i < rows; ++i) rows_x[i] = x(first + i);
    w.product(panel, w.columns, rows_x, static_cast<int>(rows), out);
    for (int64_t i = 0; i < rows; ++i) store(first + i, n, out + i * kPanelRows, outputs);
  });
}

/// The same for inputs at row(i), quantised into scratch first if the weight wants them so.
template <typename Row, typename Store>
void multiply_rows(const MatmulKernels& kernels, const Matrix& w, int64_t m, Slice panels, int64_t count,
                   Row row, float* scratch, Store store) {
  if (w.quantized)
    return multiply(w, m, panels, count, quantized(kernels, count, w.columns, row, scratch), store);
  multiply(w, m, panels, count, row, store);
}

/// silu(gate x) * (up x) in the same way; x(weight, i) is input i as that weight takes it.
template <typename X, typename Store>
void multiply_gated(const MatmulKernels& kernels, const Matrix& gate, const Matrix& up, int64_t m,
                    Slice panels, int64_t count, X x, Store store) {
  const uint8_t *gate_panel = nullptr, *up_panel = nullptr;
  int64_t n = 0, outputs = 0;
  const auto open = [&](int64_t p) {
    gate_panel = gate.panel(m, p), up_panel = up.panel(m, p);
    n = p * kPanelRows, outputs = std::min<int64_t>(kPanelRows, gate.rows - n);
  };
  each_tile(panels, count, gate.columns, open, [&](int64_t first, int64_t rows) {
    alignas(64) float gates[kTileRows * kPanelRows], ups[kTileRows * kPanelRows];
    const void *gate_x[kTileRows], *up_x[kTileRows];
    for (int64_t i = 0; i < rows; ++i) gate_x[i] = x(gate, first + i), up_x[i] = x(up, first + i);
    gate.product(gate_panel, gate.columns, gate_x, static_cast<int>(rows), gates);
    up.product(up_panel, up.columns, up_x, static_cast<int>(rows), ups);
    kernels.silu_mul(gates, ups, rows * kPanelRows, gates);
    for (int64_t i = 0; i < rows; ++i) store(first + i, n, gates + i * kPanelRows, outputs);
  });
}

/// Shares panels of many matrices that see different numbers of rows: a panel costs its reading and its rows,
/// and each worker takes an equal stretch of the whole cost.
class PanelShares {
 public:
  PanelShares(int worker, int workers) : worker_(worker), workers_(workers) {}
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
  /// Reading a panel takes as long as computing some rows of it.
  static int64_t cost(int64_t rows) { return rows == 0 ? 0 : rows + 4; }
  int worker_, workers_;
  int64_t total_ = 0, position_ = 0;
};

}  // namespace sluice::backend::cpu
