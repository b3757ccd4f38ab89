// The reference backend: walks the list and calls each op's plain-loop meaning. Slow; the judge of the
// others. Arithmetic is float32.
#pragma once

#include "program/backend.h"

namespace sluice::backend {

/// halves: caches of F16 keep halves, as every other backend's do; otherwise they keep float32.
std::unique_ptr<program::Backend> make_ref_backend(bool halves = false);

}  // namespace sluice::backend
