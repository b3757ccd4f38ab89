// the top-k tokens of the rows of logits, found on the device: what most samplers need of a row whose numbers
// would take longer to bring to the host.
#pragma once

#include <span>

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/host/memory.h"
#include "program/step.h"

namespace sluice::backend::cuda {

class TopK {
 public:
  /// For steps of at most max_outputs rows.
  explicit TopK(int64_t max_outputs);
  ~TopK();
  TopK(const TopK&) = delete;
  TopK& operator=(const TopK&) = delete;

  /// Enqueues the search behind what makes the logits, and the draws [outputs]; each step slot has its own.
  void enqueue(const Context& context, const Rows<float>& logits, int64_t outputs, const program::Draw* draws,
               int step_slot) const;
  /// What a step that has ended has found, [outputs][kMaxTopK], and drawn [outputs].
  std::span<const program::Likely> found(int64_t outputs, int step_slot) const {
    return {pinned(step_slot), static_cast<size_t>(outputs * program::kMaxTopK)};
  }
  std::span<const int32_t> drawn(int64_t outputs, int step_slot) const {
    return {pinned_drawn(step_slot), static_cast<size_t>(outputs)};
  }
  /// On the device: what the last step that was searched has drawn, by output; 0 where there was nothing to
  /// draw from.
  int32_t* drawn() const { return reinterpret_cast<int32_t*>(drawn_.data()); }
  int64_t bytes() const { return largest_.bytes() + drawn_.bytes(); }

 private:
  program::Likely* pinned(int step_slot) const {
    return reinterpret_cast<program::Likely*>(pinned_) + step_slot * max_outputs_ * program::kMaxTopK;
  }

  int32_t* pinned_drawn(int step_slot) const {
    return reinterpret_cast<int32_t*>(pinned(kStepSlots)) + step_slot * max_outputs_;
  }

  int64_t max_outputs_;
  Buffer largest_;  // of each group of a row
  Buffer drawn_;
  char* pinned_ = nullptr;  // found [kStepSlots][max_outputs][kMaxTopK], drawn [kStepSlots][max_outputs]
};

}  // namespace sluice::backend::cuda
