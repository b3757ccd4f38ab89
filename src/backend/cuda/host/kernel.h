// What a kernel is for the host: which ops it serves, what it needs, how it is launched. Host code and .cu
// files see it alike.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "backend/cuda/host/device.h"
#include "backend/cuda/host/form.h"
#include "program/program.h"

namespace sluice::backend::cuda {

class Memory;
class LaunchLog;
class LaunchTimes;

/// What is chosen by: the sizes of a bucket of steps, and the device (sizes_on of host/architecture.h).
struct Sizes {
  int64_t rows = 1;
  int64_t longest = 1;   ///< positions of a row's context at most
  int architecture = 0;  ///< of the device: 90 is compute capability 9.0
  int sm_count = 0;      ///< its SMs

  /// Another bucket's on the same device.
  Sizes of(int64_t bucket_rows, int64_t bucket_longest) const {
    return {bucket_rows, bucket_longest, architecture, sm_count};
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
  bool prompts_alone;    ///< no row but those of long stretches of prompts (host/prompts.h)
  bool one_sequence;     ///< all rows are neighbours in one sequence: drafts, or a short prompt
  char* scratch;         ///< scratch_bytes of it
  const int32_t* drawn;  ///< by outputs of the step before, for following()
  cudaStream_t stream;
  int sm_count;      ///< SMs of the device
  int architecture;  ///< 90: compute capability 9.0
  bool uses_pdl;     ///< kernels start before their predecessor has ended, and wait by themselves
  const FormBuffer* consumes =
      nullptr;  ///< what the launch before has left for this one (Kernel::consumes), or null
  const FormBuffer* produces = nullptr;  ///< what the one behind takes (Kernel::produces), or null
  uint64_t* zeroed = nullptr;            ///< slots of the mailbox as Kernel::mailbox wants them
  uint32_t launch = 0, launches = 1;     ///< the op's number in the step, and how many there are
  LaunchLog* log = nullptr;              ///< set: launches are told to it and not started
  LaunchTimes* times = nullptr;          ///< set: launches leave their times there

  Sizes sizes() const { return {step_rows, longest, architecture, sm_count}; }
  /// The launch's own words.
  Mailbox mailbox() const { return {step.mailbox, zeroed, step.header, launch, launches}; }
  /// Those of a form in flagged slots, with its producer's flag.
  Mailbox mailbox(const FormBuffer& form) const {
    return {reinterpret_cast<uint64_t*>(form.at), nullptr, step.header, form.launch, launches};
  }
  int64_t rows(const program::Tensor& tensor) const {
    return program::Program::rows(tensor, step_rows, output_rows);
  }
};

/// Slots of the mailbox that blocks of a launch have among themselves.
struct MailboxNeeds {
  int64_t flagged = 0;  ///< with the launch's flag
  /// Zero before the first launch, and then as earlier launches of the kernel with the same `layout` left
  /// them.
  int64_t zeroed = 0, layout = 0;
};

struct Kernel {
  const char* name;
  /// Whether it can and should run this op in steps of these sizes.
  bool (*serves)(const program::Program&, const program::Op&, const Sizes&);
  void (*launch)(const program::Program&, const program::Op&, const Context&);
  /// Bytes of scratch at most; null: none.
  int64_t (*scratch_bytes)(const program::Program&, const program::Op&, const Sizes&) = nullptr;
  /// The form that it can leave for the launch behind, or take from the one before; null: none. Both happen
  /// only where the neighbour declares the same, and then Context says so.
  std::optional<FormSpec> (*produces)(const program::Program&, const program::Op&, const Sizes&) = nullptr;
  std::optional<FormSpec> (*consumes)(const program::Program&, const program::Op&, const Sizes&) = nullptr;
  /// null: none.
  MailboxNeeds (*mailbox)(const program::Program&, const program::Op&, const Sizes&) = nullptr;
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

}  // namespace sluice::backend::cuda
