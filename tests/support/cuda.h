// The CUDA backend for tests that need a device: they are skipped, by name, where there is none. Several test
// programs may share it (shards, ctest -j); a test that measures time has it for itself.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/cuda_library.h"

namespace sluice::test {

/// A turn on the device, beside those of other programs' tests or alone. Who wants it alone closes the gate
/// while waiting for the others' turns to end.
class DeviceTurn {
 public:
  explicit DeviceTurn(bool alone) : file_(open_file("sluice-test-gpu")) {
    const int gate = open_file("sluice-test-gpu-gate");
    flock(gate, LOCK_EX);
    flock(file_, alone ? LOCK_EX : LOCK_SH);
    close(gate);
  }
  ~DeviceTurn() { close(file_); }
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

 private:
  /// What cannot be opened locks nothing.
  static int open_file(const char* name) {
    return open((std::filesystem::temp_directory_path() / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  }
  int file_;
};

/// Null where there is no device, and why.
struct CudaForTest {
  explicit CudaForTest(bool alone = false) : turn(alone) { backend = cli::load_cuda_backend(0, why); }
  DeviceTurn turn;
  std::unique_ptr<program::Backend> backend;
  std::string why;
};

}  // namespace sluice::test

/// In a test's body: `cuda`, a backend, or the test is skipped.
#define CUDA_OR_SKIP(cuda)                           \
  const ::sluice::test::CudaForTest cuda##_for_test; \
  SLUICE_CUDA_FOR_TEST(cuda)
/// The same, while no other test program uses the device.
#define CUDA_ALONE_OR_SKIP(cuda)                           \
  const ::sluice::test::CudaForTest cuda##_for_test(true); \
  SLUICE_CUDA_FOR_TEST(cuda)
#define SLUICE_CUDA_FOR_TEST(cuda)                                   \
  if (!cuda##_for_test.backend) GTEST_SKIP() << cuda##_for_test.why; \
  ::sluice::program::Backend& cuda = *cuda##_for_test.backend
