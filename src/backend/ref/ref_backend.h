// The reference backend: walks the list and calls each op's plain-loop meaning. Slow; the judge of the
// others. Arithmetic and cache are float32.
#pragma once

#include "program/backend.h"

namespace sluice::backend {

std::unique_ptr<program::Backend> make_ref_backend();

}  // namespace sluice::backend
