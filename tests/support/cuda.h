// The CUDA backend for tests that need a device: they are skipped, by name, where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cli/cuda_library.h"

namespace sluice::test {

/// Null where there is no device, and why.
struct CudaForTest {
  CudaForTest() { backend = cli::load_cuda_backend(why); }
  std::unique_ptr<program::Backend> backend;
  std::string why;
};

}  // namespace sluice::test

/// In a test's body: `cuda`, a backend, or the test is skipped.
#define CUDA_OR_SKIP(cuda)                                           \
  const ::sluice::test::CudaForTest cuda##_for_test;                 \
  if (!cuda##_for_test.backend) GTEST_SKIP() << cuda##_for_test.why; \
  ::sluice::program::Backend& cuda = *cuda##_for_test.backend
