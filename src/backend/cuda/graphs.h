// A step as a chain of kernels: captured once for each bucket of sizes, then launched whole.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/bind.h"
#include "backend/cuda/step_block.h"

namespace sluice::backend::cuda {

/// A device's compute capability: 90 for 9.0.
int architecture_of(int device);

/// What a graph is captured for.
struct Bucket {
  int64_t rows, outputs, longest;
  bool timed;  ///< an event stands between the ops

  auto operator<=>(const Bucket&) const = default;
};

class Graphs {
 public:
  Graphs(const Bound& bound, const Memory& memory, const StepBlock& block, int device);
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  /// Launches the bucket's graph, captured when it is wanted for the first time.
  void launch(const Bucket& bucket, cudaStream_t stream);
  /// Kernels of a bucket's graph.
  int kernels(const Bucket& bucket) const;
  /// What the launches of op i take in a bucket's graph, as text; nothing is started.
  std::string resources(const Bucket& bucket, size_t i) const;
  /// Forgets all: memory that graphs point to has moved.
  void clear();
  /// Event i of a timed graph was recorded before op i, the last one after the last op.
  const std::vector<cudaEvent_t>& events() const { return events_; }

 private:
  cudaGraphExec_t capture(const Bucket& bucket, cudaStream_t stream);
  void enqueue(const Bucket& bucket, cudaStream_t stream);
  Context context(const Bucket& bucket, cudaStream_t stream) const;
  std::vector<Launch> launches(const Bucket& bucket, size_t i) const;

  const Bound& bound_;
  const Memory& memory_;
  const StepBlock& block_;
  int processors_, architecture_;
  std::map<Bucket, cudaGraphExec_t> graphs_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace sluice::backend::cuda
