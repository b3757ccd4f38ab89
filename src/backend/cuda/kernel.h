// What a kernel is for the host: which ops it serves, what it needs, how it is launched. Host code and .cu
// files see it alike.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device.h"
#include "program/program.h"

namespace sluice::backend::cuda {

class Memory;
class LaunchLog;
class LaunchTimes;

/// What is chosen by: the sizes of a bucket of steps, and the device (sizes_on of architecture.h).
struct Sizes {
  int64_t rows = 1;
  int64_t longest = 1;   ///< positions of a row's context at most
  int architecture = 0;  ///< of the device: 90 is compute capability 9.0
  int processors = 0;    ///< its multiprocessors

  /// Another bucket's on the same device.
  Sizes of(int64_t bucket_rows, int64_t bucket_longest) const {
    return {bucket_rows, bucket_longest, architecture, processors};
  }
};

/// Everything a launch gets besides its op. Sizes are the bucket's: a captured graph serves all steps that
/// fit, and kernels skip rows from step.header->rows on.
struct Context {
  const Memory& memory;
  StepView step;
  int64_t step_rows;     ///< rows, rounded up to the bucket
  int64_t output_rows;   ///< likewise
  int64_t longest;       ///< no row's context is longer
  bool prompts_alone;    ///< no row but those of long stretches of prompts (prompts.h)
  char* scratch;         ///< scratch_bytes of it; what the op before left there is still there
  const int32_t* drawn;  ///< by outputs of the step before, for following()
  cudaStream_t stream;
  int processors;    ///< multiprocessors of the device
  int architecture;  ///< 90: compute capability 9.0
  bool overlap;      ///< kernels start before their predecessor has ended, and wait by themselves
  const program::Op* previous = nullptr;  ///< the op that was launched before; null: not known
  const program::Op* next = nullptr;      ///< likewise the one that is launched behind
  uint32_t launch = 0, launches = 1;      ///< the op's number in the step, and how many there are
  LaunchLog* log = nullptr;               ///< set: launches are told to it and not started
  LaunchTimes* times = nullptr;           ///< set: launches leave their times there

  Sizes sizes() const { return {step_rows, longest, architecture, processors}; }
  Board board() const { return {step.board, step.header, launch, launches}; }
  int64_t rows(const program::Tensor& tensor) const {
    return program::Program::rows(tensor, step_rows, output_rows);
  }
};

struct Kernel {
  const char* name;
  /// Whether it can and should run this op in steps of these sizes.
  bool (*serves)(const program::Program&, const program::Op&, const Sizes&);
  void (*launch)(const program::Program&, const program::Op&, const Context&);
  /// Bytes of scratch at most; null: none.
  int64_t (*scratch_bytes)(const program::Program&, const program::Op&, const Sizes&) = nullptr;
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

}  // namespace sluice::backend::cuda
