// A step as a chain of kernels: captured once for each bucket of sizes, then launched whole.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/host/bind.h"
#include "backend/cuda/host/launch_times.h"
#include "backend/cuda/host/resources.h"
#include "backend/cuda/host/step_block.h"
#include "backend/cuda/small/top_k.h"

namespace sluice::backend::cuda {

/// What a graph is captured for.
struct Bucket {
  int64_t rows, outputs, longest;
  bool prompts_alone = false;  ///< no row but those of long stretches of prompts (host/prompts.h)
  bool timed = false;          ///< kernels leave their times
  bool top_k = false;          ///< the top-k tokens of outputs are found
  int part = -1;               ///< of a step that runs part by part (program/places.h); -1: all of it
  int step_slot = 0;           ///< which slot of the steps in flight it has
  bool no_outputs = false;     ///< where copies_outputs(): nothing gives logits
  bool one_sequence = false;   ///< where groups_rows(): all rows are neighbours in one sequence

  auto operator<=>(const Bucket&) const = default;
};

/// What serving runs: every bucket of rows, whose outputs are one or as many as there can be, and of
/// contexts, for each of the steps in flight; the top-k tokens are found in all. Steps of answers alone come
/// first, and no more than 256 MB of graphs: of a large model those of prompts, whose steps take longer than
/// a capture, are left to the step that first needs them.
std::vector<Bucket> serving_buckets(const Bound& bound, const program::CompileOptions& options);

/// Whether steps of so many rows of one sequence have kernels of their own: they see the same context, and
/// latent attention reads that once for several of them.
bool groups_rows(const Bound& bound, int64_t rows, int64_t longest);

/// Memory of the device that so many graphs take, by what was measured an op.
int64_t graph_bytes(const Bound& bound, size_t graphs);

/// The bucket of outputs in a step of this bucket of rows: rows that are no outputs cost little. All that
/// there can be where options are batch-invariant.
int64_t output_bucket(int64_t rows, int64_t outputs, const program::CompileOptions& options);

class Graphs {
 public:
  Graphs(const Bound& bound, const Memory& memory, const StepBlock& block, const TopK& top_k);
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  /// Captures the graphs of these buckets.
  void prepare(const std::vector<Bucket>& buckets, cudaStream_t stream);
  /// What parts of a step are (launched_parts).
  const std::vector<program::Range>& parts() const { return parts_; }
  /// Whether rows that give logits go from rank to rank.
  bool copies_outputs() const { return copies_outputs_; }
  /// Launches the bucket's graph, captured now if it was not before. The first part of a step is never left
  /// out: the step's data comes with it.
  void launch(const Bucket& bucket, cudaStream_t stream);
  /// Memory of the device that the graphs take.
  int64_t bytes() const;
  /// Kernels of a bucket's graph.
  int kernels(const Bucket& bucket) const;
  /// What the launches of op i take in a bucket's graph; nothing is started.
  std::vector<LaunchResources> resources(const Bucket& bucket, size_t i) const;
  /// Forgets all: memory that graphs point to has moved.
  void clear();
  /// When each op ran in the last step of a timed bucket, which has ended: from its first launch's begin to
  /// its last one's end, on the device's clock.
  void op_times(const Bucket& bucket, cudaStream_t stream, std::vector<LaunchTime>& times);

 private:
  struct Captured {
    cudaGraphExec_t graph = nullptr;
    std::unique_ptr<LaunchTimes> times;  ///< of a timed bucket
    std::vector<size_t> first;           ///< launch of each op, and how many there are
  };
  void capture(const Bucket& bucket, cudaStream_t stream, Captured& captured);
  void enqueue(const Bucket& bucket, cudaStream_t stream, LaunchTimes* times);
  std::vector<size_t> first_launches(const Bucket& bucket) const;
  Context context(const Bucket& bucket, cudaStream_t stream) const;
  /// Launches op i as the bucket's plan says.
  void enqueue_op(const Bucket& bucket, size_t i, Context step) const;
  /// A form as its producer or consumer gets it.
  FormBuffer form_buffer(const StepPlan& plan, const Passed& passed, bool producer) const;

  const Bound& bound_;
  const Memory& memory_;
  const StepBlock& block_;
  const TopK& top_k_;
  std::vector<program::Range> parts_;
  bool copies_outputs_ = false;
  bool tokens_everywhere_ = false;  // every rank begins with a step's tokens, and rank 0 draws them
  std::map<Bucket, Captured> graphs_;
};

}  // namespace sluice::backend::cuda
