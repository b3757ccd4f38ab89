// Steps that run row by row: an executable whose results never depend on what else is in a step.
#pragma once

#include <memory>

#include "program/backend.h"

namespace sluice::backend::cuda {

/// Steps of any rows by an executable of steps of one row, which owns weights and cache. Kernels of one row
/// choose by the row's own context alone, so sums have one order whatever the step holds; a prompt is read at
/// the speed of decoding.
std::unique_ptr<program::Executable> run_row_by_row(std::unique_ptr<program::Executable> one);

}  // namespace sluice::backend::cuda
