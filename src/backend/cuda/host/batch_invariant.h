// Steps whose rows' results never depend on what else is in a step (CompileOptions::batch_invariant).
#pragma once

#include <cstdint>
#include <memory>

#include "program/backend.h"

namespace sluice::backend::cuda {

/// Rows that run together: those of an answer with its drafts (Facts::draft_rows).
inline constexpr int64_t kInvariantRows = 8;

/// What the executable is compiled for by which steps of these options run: graphs of kInvariantRows alone,
/// and one slot for states more.
program::CompileOptions options_inside(program::CompileOptions options);

/// Steps of these options by that executable. Rows run together whose contexts are in the same bucket, so a
/// row's kernels are chosen by its own context; a prompt is read at the speed of decoding.
std::unique_ptr<program::Executable> run_batch_invariant(std::unique_ptr<program::Executable> inner,
                                                         const program::CompileOptions& options);

}  // namespace sluice::backend::cuda
