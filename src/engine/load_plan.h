// What a model will take of memory, known before any of it is taken, and the context that fits.
#pragma once

#include <cstdint>

#include "program/backend.h"

namespace sluice::engine {

struct LoadPlan {
  int64_t context = 0;          ///< tokens
  program::MemoryNeeds needs;   ///< of the backend, for this context
  int64_t logits_bytes = 0;     ///< the engine's: what a sampler makes of a row of them
  int64_t available_bytes = 0;  ///< kUnknownMemory (base/cpu_info.h): everything fits
  int64_t fitting_context = 0;  ///< the largest context that would fit, at most the model's; 0: none

  int64_t total_bytes() const;
  bool fits() const { return total_bytes() <= available_bytes; }
};

/// The plan for a context of `wanted` tokens, or with 0 for the largest that fits: at most the model's own,
/// and a page at least. `options` says the rows; its pages follow from the context. Allocates nothing.
/// block: another program of the model, over the same weights, some of its own, and as many pages.
LoadPlan plan_load(const program::Backend& backend, const program::Program& program,
                   program::CompileOptions options, int64_t model_context, int64_t wanted,
                   int64_t available_bytes, const program::Program* block = nullptr);

}  // namespace sluice::engine
