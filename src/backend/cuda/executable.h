// The CUDA executable: a step's data goes to the device, a graph runs, logits come back.
#pragma once

#include <memory>

#include "backend/cuda/memory.h"
#include "program/backend.h"

namespace sluice::backend::cuda {

/// Positions that a cache of these options holds.
inline int64_t longest_context(const program::CompileOptions& options) {
  return options.cache_pages * program::kPageRows;
}

/// Without weights kernels are chosen, and nothing can run.
std::unique_ptr<program::Executable> make_executable(const program::Source& source,
                                                     std::shared_ptr<const Weights> weights,
                                                     const program::CompileOptions& options);

}  // namespace sluice::backend::cuda
