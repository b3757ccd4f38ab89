// Where an executable's data lies: one arena for all activations, the caches, a scratch a worker.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/cpu/frequencies.h"
#include "backend/cpu/packed_weights.h"
#include "backend/cpu/pages.h"
#include "program/backend.h"
#include "program/program.h"
#include "quant/cache_row.h"

namespace sluice::backend::cpu {

/// An activation as kernels read and write it.
template <typename T>
struct Rows {
  T* data;
  int64_t row_stride, head_stride;
  int64_t heads, columns;

  T* operator()(int64_t row, int64_t head = 0) const { return data + row * row_stride + head * head_stride; }
  /// Its rows from `row` on.
  Rows from(int64_t row) const { return {(*this)(row), row_stride, head_stride, heads, columns}; }
};

/// A paged cache: rows of numbers in its own format, [pages / kRun][layers][kRun pages][kPageRows], the last
/// run of pages shorter. A layer's pages are read one after the other: side by side, they share the entries
/// of page tables that the system keeps for every 2 MB, and the first pages of a large cache still take no
/// more memory than a few runs.
struct Cache {
  static constexpr int64_t kRun = 8;

  std::byte* data;
  int64_t layers, pages, row_bytes;
  quant::CacheRow format;

  std::byte* row(int64_t layer, int64_t slot) const {
    const int64_t page = slot / program::kPageRows, first = page / kRun * kRun;
    const int64_t run = std::min(kRun, pages - first);
    const int64_t row = (first * layers + layer * run + page - first) * program::kPageRows;
    return data + (row + slot % program::kPageRows) * row_bytes;
  }
  /// Decodes `count` rows that follow each other, as those of a page's layer do, to out [count][columns].
  void decode(const std::byte* rows, float* out, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) format.decode(rows + i * row_bytes, out + i * format.columns);
  }
};

/// The states of sequences: [slots][layers][rows][columns].
struct State {
  float* data;
  int64_t layers, rows, columns;

  float* row(int64_t layer, int64_t slot, int64_t row) const {
    return data + ((slot * layers + layer) * rows + row) * columns;
  }
};

/// What a Memory takes, and nothing taken.
program::MemoryNeeds memory_needs(const program::Program& program, const program::CompileOptions& options,
                                  int workers, int64_t scratch_floats, bool repack);

class Memory {
 public:
  /// bf16_caches: those of binary16 that hold bfloat16, as many bytes; in the order of program.caches().
  /// rounded_from: rounded_values.h. caches_of: whose caches it has; null: its own.
  Memory(const program::Program& program, const program::WeightBytes& weights, const WeightTable& table,
         const MatmulKernels& kernels, const program::CompileOptions& options, int workers,
         int64_t scratch_floats, std::vector<bool> bf16_caches, std::vector<int64_t> rounded_from,
         const Memory* caches_of);
  /// For steps of fewer rows that run while one in `other` is paused: activations of their own, all else is
  /// the other's.
  Memory(const Memory& other, int64_t rows);

  /// A weight in the file's order.
  Weight weight(program::TensorId id) const { return weight_in_file({program_, weights_}, id); }
  /// A weight in panels: of ops whose kernel says so (Kernel::panels).
  Matrix matrix(program::TensorId id, int worker, int slot) const { return table_.matrix(id, worker, slot); }
  /// A row of a table, which may lie in panels.
  void decode_row(program::TensorId id, int64_t row, float* out) const { table_.decode_row(id, row, out); }
  /// Radians a position of the pairs that a rope rotates into `out`.
  const double* frequencies(program::TensorId out) const { return shared_->frequencies.of(out); }
  const MatmulKernels& kernels() const { return kernels_; }
  Rows<float> rows(program::TensorId id) const;
  Rows<int32_t> int_rows(program::TensorId id) const;
  /// Where an activation of so many rows is kept as rows of bf16 in place of rows() (rounded_values.h); null:
  /// it is not.
  uint16_t* rounded(program::TensorId id, int64_t rows) const;
  /// From how many rows on; the largest int64: never.
  int64_t rounded_from(program::TensorId id) const { return rounded_from_[static_cast<size_t>(id)]; }
  Cache cache(program::TensorId id) const;
  State state(program::TensorId id) const;
  /// Visits what a page of all caches, or a slot of all states, holds.
  void visit_kept(program::Kept what, int32_t index, const program::HostCopier::Visit& visit) const;
  /// Whether rows are computed in one way however many they are (CompileOptions).
  bool batch_invariant() const { return batch_invariant_; }
  /// This worker's scratch, [scratch_floats].
  float* scratch(int worker) const;
  const program::MemoryPlan& plan() const { return plan_; }
  /// All of it, but for activations aside and what is shared with other executables.
  int64_t bytes() const {
    int64_t bytes = arena_bytes() + shared_->scratch.bytes() + table_.bytes();
    if (!borrows_caches_)
      for (const Pages& cache : *shared_->caches) bytes += cache.bytes();
    return bytes;
  }
  int64_t arena_bytes() const { return arena_.bytes(); }

 private:
  /// What steps aside have in common with the others.
  struct Shared {
    Shared(const program::Program& program, const program::WeightBytes& weights,
           const program::CompileOptions& options, int64_t scratch_bytes, const Memory* caches_of);
    Frequencies frequencies;
    Pages scratch;
    std::shared_ptr<std::deque<Pages>> caches;  // in the order of program.caches()
  };
  const Pages& pages_of(program::TensorId cache) const {
    return (*shared_->caches)[program_.cache_index(cache)];
  }

  const program::Program& program_;
  const program::WeightBytes& weights_;
  const WeightTable& table_;
  const MatmulKernels& kernels_;
  int64_t max_outputs_;
  program::MemoryPlan plan_;
  int64_t scratch_bytes_, cache_pages_;
  std::vector<bool> bf16_caches_;
  bool batch_invariant_;
  std::vector<int64_t> rounded_from_;  // by TensorId
  Pages arena_;
  std::shared_ptr<const Shared> shared_;
  bool borrows_caches_ = false;
};

}  // namespace sluice::backend::cpu
