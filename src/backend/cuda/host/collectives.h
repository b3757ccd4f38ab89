// What GPUs of several processes hand to each other: enqueued on the stream of a step, and so part of its
// graph. Sums of few rows go over each other's memory where all reach it (host/peers.h), all else by NCCL.
// That library is loaded at run time; what is declared of it is its binary interface (version 2).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/peers.h"

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
  /// gathered rank 0 has all inputs, into which the others' come; a copy has both.
  void enqueue(const program::Op& op, const program::Program& program, const Context& step) const;
  /// Rank 0's numbers go to all others.
  void hand_out(int32_t* numbers, int64_t count, cudaStream_t stream) const;
  /// For plans: what enqueue() launches, which is not launched otherwise.
  const Kernel* kernel(const program::Program& program, const program::Op& op, const Sizes& sizes) const;
  const char* carrier() const { return peers_ ? ", sums over each other's memory" : ", sums by NCCL"; }
  /// What sums have taken on this device while no step runs; 0 where NCCL makes them.
  int64_t sums_ns() const { return peers_ ? peers_->sums_ns() : 0; }
  /// From any thread: what waits for a rank that is gone ends.
  void abort();

 private:
  struct Functions;
  static const Functions& functions();
  static void check(int result, const char* what);
  void all_reduce(const program::AllReduce& op, const program::Program& program, const Context& step) const;
  void gather(const program::AllGather& op, const program::Program& program, const Context& step) const;
  void copy(const program::Copy& op, const program::Program& program, const Context& step) const;
  void warm_up() const;

  int rank_, ranks_;
  void* communicator_ = nullptr;
  std::unique_ptr<Peers> peers_;  // or null
  std::atomic<bool> aborted_{false};
};

}  // namespace sluice::backend::cuda
