// What GPUs of several processes hand to each other, by NCCL: enqueued on the stream of a step, and so part
// of its graph. The library is loaded at run time; what is declared of it is its binary interface (version
// 2).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "backend/cuda/host/memory.h"

namespace sluice::backend::cuda {

class Collectives {
 public:
  using Id = std::array<char, 128>;
  /// A new name for ranks to find each other by. Throws Error where the library is not there.
  static Id make_id();
  /// Meets the other ranks, on the current device. Throws Error.
  Collectives(const Id& id, int rank, int ranks);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// An op across places, of this rank's side of a program. A sum has operands of this rank alone; of what is
  /// gathered rank 0 has all inputs, into which the others' come.
  void enqueue(const program::Op& op, const program::Program& program, const Memory& memory,
               int64_t step_rows, int64_t output_rows, cudaStream_t stream) const;
  /// From any thread: what waits for a rank that is gone ends.
  void abort();

 private:
  struct Functions;
  static const Functions& functions();
  static void check(int result, const char* what);
  void all_reduce(const program::AllReduce& op, const Memory& memory, int64_t rows,
                  cudaStream_t stream) const;
  void gather(const program::AllGather& op, const program::Program& program, const Memory& memory,
              int64_t rows, cudaStream_t stream) const;
  void warm_up() const;

  int rank_, ranks_;
  void* communicator_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace sluice::backend::cuda
