// Memory of GPUs of one host that reach each other's (small/peer_sum.h), one process a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>

#include "backend/cuda/host/buffer.h"
#include "backend/cuda/small/peer_sum.h"

namespace sluice::backend::cuda {

class Peers {
 public:
  /// Adds up bytes of all ranks, in place.
  using AddUp = std::function<void(std::span<uint8_t>)>;
  /// All ranks at the same time, on their current devices. Null at all of them where one does not reach
  /// another one's memory: a sum that is known beforehand shows it.
  static std::unique_ptr<Peers> meet(int rank, int ranks, const AddUp& add_up);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const PeerMemory& memory() const { return memory_; }
  /// From any thread: nobody waits any more.
  void stop() { *stop_ = 1; }
  /// What this rank's sums have taken on its device, waiting for others included. While no step runs.
  int64_t sums_ns() const;

 private:
  Peers(int rank, int ranks);
  void open(const AddUp& add_up);
  bool adds_up();

  Buffer inbox_, state_;
  volatile uint32_t* stop_ = nullptr;  // pinned
  PeerMemory memory_{};
  bool opened_ = true;
};

}  // namespace sluice::backend::cuda
