// The CPU backend: a team of threads walks the list together, one barrier an op; weights are read straight
// from the mapped file. Its kernels are generic C++: a weight row is decoded to float32 and multiplied there.
#pragma once

#include "program/backend.h"

namespace sluice::backend {

struct CpuOptions {
  int threads = 0;    ///< 0: as many as this process may use, and one for small steps
  bool fused = true;  ///< false: fused ops run as their expansions, to measure what fusing gains
};

std::unique_ptr<program::Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace sluice::backend
