// A program on a device.
#pragma once

#include <memory>

#include "backend/vulkan/context.h"
#include "backend/vulkan/weights.h"
#include "program/backend.h"

namespace sluice::backend::vulkan {

/// The program is legal. Without weights it can tell what it is bound to, and nothing is taken.
std::unique_ptr<program::Executable> make_executable(std::shared_ptr<Context> context,
                                                     program::Program program,
                                                     const program::WeightBytes& bytes,
                                                     std::shared_ptr<const Weights> weights,
                                                     const program::CompileOptions& options);

/// The kernels that ops of steps of so many rows are bound to.
std::vector<program::BoundKernel> bound_kernels(const Layout& layout, const Sizes& sizes);

}  // namespace sluice::backend::vulkan
