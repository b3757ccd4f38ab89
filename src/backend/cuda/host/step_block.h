// A step's data on its way to the device: one pinned block that the graph copies, and what has changed of the
// page tables. Each step slot has a block.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/prompts.h"
#include "program/step.h"

namespace sluice::backend::cuda {

class StepBlock {
 public:
  /// table_entries: of page tables, for which there is room from the start. has_states: whether the program
  /// has any.
  StepBlock(int64_t max_rows, int64_t max_outputs, int64_t table_entries, int64_t mailbox_slots,
            bool has_states);
  ~StepBlock();
  StepBlock(const StepBlock&) = delete;
  StepBlock& operator=(const StepBlock&) = delete;

  /// Fills a step slot's pinned block, which no step in flight has, laid out for a bucket of rows and
  /// outputs; longest: of the bucket's contexts. Returns whether the page tables moved, so that graphs that
  /// know their old place are of no use any more; no step is in flight then.
  bool fill(const program::Step& step, int64_t rows, int64_t outputs, int64_t longest, int step_slot,
            cudaStream_t stream);
  /// Whether the step's rows are long stretches of prompts and nothing else.
  bool prompts_alone() const { return prompts_alone_; }
  /// Enqueues the copy of a block of this bucket.
  void copy(int64_t rows, int64_t outputs, int step_slot, cudaStream_t stream) const;
  StepView view(int64_t rows, int64_t outputs, int step_slot) const;
  /// How tokens of outputs are drawn, on the device.
  const program::Draw* draws(int64_t rows, int64_t outputs, int step_slot) const;
  /// Words that kernels leave for each other, zero at first.
  uint64_t* mailbox() const { return reinterpret_cast<uint64_t*>(mailbox_.data()); }
  int64_t bytes() const { return device_.bytes() + tables_.bytes() + mailbox_.bytes(); }

 private:
  struct Layout {
    int64_t tokens, positions, sequences, slots, output_rows, draws, prompts, segments, runs, run_of, bytes;
  };
  Layout layout(int64_t rows, int64_t outputs) const;
  void allocate_tables(int64_t bytes);
  bool update_tables(const program::StepInput& input, int step_slot, cudaStream_t stream);

  bool has_states_;
  int64_t block_bytes_;               // of a step slot
  char* pinned_ = nullptr;            // [kStepSlots][block_bytes_]
  char* pinned_tables_ = nullptr;     // [kStepSlots][bytes of tables_]
  Buffer device_, tables_, mailbox_;  // device_: as pinned_
  uint32_t steps_ = 0;
  bool prompts_alone_ = false;
  std::vector<int32_t> known_tables_;  // what the device has
};

}  // namespace sluice::backend::cuda
