// The CUDA executable: a step's data goes to the device, a graph runs, logits come back.
#pragma once

#include <memory>

#include "backend/cuda/host/bind.h"
#include "backend/cuda/host/memory.h"
#include "program/backend.h"

namespace sluice::backend::cuda {

/// What a warm executable takes of the device's memory for being so: graphs, and page tables that do not
/// move.
int64_t warm_bytes(const Bound& bound, const program::CompileOptions& options);

/// On a device, where the weights are, too. Without weights kernels are chosen (Backend::bind), and nothing
/// can run.
std::unique_ptr<program::Executable> make_executable(int device, const program::Source& source,
                                                     std::shared_ptr<const Weights> weights,
                                                     const program::CompileOptions& options,
                                                     const Collectives* collectives = nullptr);

}  // namespace sluice::backend::cuda
