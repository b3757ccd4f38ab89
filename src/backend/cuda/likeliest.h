// The likeliest tokens of the rows of logits, found on the device: what most samplers need of a row whose
// numbers would take longer to bring to the host.
#pragma once

#include <span>

#include "backend/cuda/kernel.h"
#include "backend/cuda/memory.h"
#include "program/step.h"

namespace sluice::backend::cuda {

class Likeliest {
 public:
  /// For steps of at most max_outputs rows.
  explicit Likeliest(int64_t max_outputs);
  ~Likeliest();
  Likeliest(const Likeliest&) = delete;
  Likeliest& operator=(const Likeliest&) = delete;

  /// Enqueues the search behind what makes the logits.
  void enqueue(const Context& context, const Rows<float>& logits, int64_t outputs) const;
  /// What a step that has ended has found: [outputs][kLikeliest].
  std::span<const program::Likely> found(int64_t outputs) const {
    return {reinterpret_cast<const program::Likely*>(pinned_),
            static_cast<size_t>(outputs * program::kLikeliest)};
  }
  int64_t bytes() const { return largest_.bytes(); }

 private:
  Buffer largest_;  // of each group of a row
  char* pinned_ = nullptr;
};

}  // namespace sluice::backend::cuda
