// The null backend: it computes nothing and takes as long as a device with given peaks needs at least. A
// profile of it is a forecast: what hardware could do, before one has it.
#pragma once

#include <memory>

#include "program/backend.h"

namespace sluice::backend {

/// Runs every op, fused ones too, in limit_seconds() of the peaks. Logits are zeros; weights are never read.
std::unique_ptr<program::Backend> make_null_backend(const program::Peaks& peaks);

}  // namespace sluice::backend
