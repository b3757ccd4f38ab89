// The weights of an executable that its kernels multiply, packed at load (packed.h) into memory of their own.
#pragma once

#include <functional>
#include <vector>

#include "backend/cpu/packed.h"
#include "backend/cpu/pages.h"
#include "base/threads.h"
#include "program/backend.h"

namespace sluice::backend::cpu {

/// A weight as products read it: panel p of matrix m.
struct Matrix {
  const uint8_t* data;
  int64_t matrix_bytes, panel_bytes;
  int64_t matrices, rows, columns;
  bool quantized;  // products take QuantBlocks (else floats)
  PanelProduct product;

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  const uint8_t* panel(int64_t matrix, int64_t panel) const {
    return data + matrix * matrix_bytes + panel * panel_bytes;
  }
};

class PackedWeights {
 public:
  /// Room for the weights of every op whose kernel reads panels; load() fills it. Throws Error when the
  /// system refuses the memory.
  PackedWeights(const program::Program& program, const MatmulKernels& kernels);

  /// Packs, shared among the team; progress(bytes done, bytes in all) is called now and then by the calling
  /// thread, if it is there. Where memory is too short for the file's pages and the packed weights, pages
  /// that were read are given back to the system as it goes.
  void load(const program::WeightBytes& weights, Team& team,
            const std::function<void(int64_t, int64_t)>& progress);

  bool holds(program::TensorId id) const { return offset_[static_cast<size_t>(id)] >= 0; }
  Matrix matrix(program::TensorId id) const;
  int64_t bytes() const { return bytes_; }

 private:
  void add(program::TensorId id);

  const program::Program& program_;
  const MatmulKernels& kernels_;
  std::vector<int64_t> offset_;         // by TensorId; -1: not packed
  std::vector<program::TensorId> ids_;  // packed, in the order of offset_
  int64_t bytes_ = 0;
  Pages pages_;
};

}  // namespace sluice::backend::cpu
