// Rows of activations on their way from one to another, and numbers of them from and to the host.
#pragma once

#include <span>

#include "backend/cuda/host/device.h"
#include "backend/cuda/host/stream.h"
#include "program/executable.h"

namespace sluice::backend::cuda {

/// Enqueues copies of rows without gaps, one after the other; both may be the same activation.
void copy_rows(const Rows<float>& from, const Rows<float>& to,
               std::span<const program::Executable::RowCopy> rows, cudaStream_t stream);

/// The numbers of a view's first rows, whatever its strides, as floats; ints: they are int32 there. Waits.
void read_numbers(const Rows<float>& view, int64_t rows, bool ints, std::span<float> values,
                  const Stream& stream);
void write_numbers(const Rows<float>& view, int64_t rows, bool ints, std::span<const float> values,
                   const Stream& stream);

}  // namespace sluice::backend::cuda
