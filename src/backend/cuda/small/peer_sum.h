// Sums of rows that GPUs of one host have each a part of, over each other's memory (host/peers.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

inline constexpr int kMostPeers = 8;

/// Of a rank's exchanges.
struct PeerState {
  uint32_t exchanges;  ///< how many have ended
  uint32_t blocks;     ///< thread blocks that have ended the one that runs
  uint64_t all_ns;     ///< what they have taken the first of these, waiting included
};

/// Memory by which GPUs hand numbers to each other, as one of them reaches it. An inbox has room for what
/// each rank sends, twice: of exchange n and n + 1. When n + 2 begins here, every other rank has begun n + 1,
/// so that it has read all of n.
struct PeerMemory {
  /// What comes from one rank in one exchange: words of a number and its flag, or chunks of numbers, and the
  /// chunks' flags. None lies where another kind does: numbers may look like flags.
  static constexpr int64_t kWordsBytes = 2 << 20, kNumbersBytes = 4 << 20, kChunkBytes = 32 << 10;
  static constexpr int64_t kChunks = kNumbersBytes / kChunkBytes;
  static constexpr int64_t kPartBytes = kWordsBytes + kNumbersBytes + kChunks * int64_t{sizeof(uint32_t)};

  int rank, ranks;
  char* inbox[kMostPeers];  ///< by rank: [2][ranks][kPartBytes]
  PeerState* state;
  const volatile uint32_t* stop;  ///< of the host: not 0 when nobody is to wait any more

  static int64_t inbox_bytes(int ranks) { return 2 * int64_t{ranks} * kPartBytes; }
};

/// out = the sum of all ranks' `in` in the order of ranks, the same bits at every rank.
struct PeerSum {
  PeerMemory peers;
  const int32_t* rows;  ///< of the step
  int32_t columns;      ///< a multiple of 4
  const float* in;      ///< null: this rank brings nothing
  float* out;
};

/// Enqueues it for steps of at most `most_rows` rows, which an inbox has room for.
void enqueue_peer_sum(const PeerSum& sum, int64_t most_rows, bool uses_pdl, cudaStream_t stream);

/// A step's all_reduce at this rank; for the norm_matmul behind it rows may be left in codes, too.
void launch_peer_sum(const PeerMemory& peers, const program::Program& program, const program::AllReduce& op,
                     const Context& context);
/// More numbers than an inbox has room for are NCCL's, which is sooner with them: prompts.
bool serves_peer_sum(const program::Program& program, const program::AllReduce& op, const Sizes& sizes);
/// For plans: what it produces.
extern const Kernel kPeerSum;

}  // namespace sluice::backend::cuda
