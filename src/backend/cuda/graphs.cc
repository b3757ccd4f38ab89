#include "backend/cuda/graphs.h"

#include "backend/cuda/cuda_check.h"

namespace sluice::backend::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace

int architecture_of(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

Graphs::Graphs(const Bound& bound, const Memory& memory, const StepBlock& block, int device)
    : bound_(bound),
      memory_(memory),
      block_(block),
      processors_(attribute(cudaDevAttrMultiProcessorCount, device)),
      architecture_(bound.architecture) {}

Graphs::~Graphs() {
  clear();
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void Graphs::clear() {
  for (const auto& [bucket, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

void Graphs::launch(const Bucket& bucket, cudaStream_t stream) {
  cudaGraphExec_t& graph = graphs_[bucket];
  if (graph == nullptr) graph = capture(bucket, stream);
  check(cudaGraphLaunch(graph, stream));
}

int Graphs::kernels(const Bucket& bucket) const {
  std::vector<Launch> launches;
  for (const Node& node : bound_.nodes)
    add_launches(bound_.program, node, {bucket.rows, bucket.longest, architecture_}, launches);
  return static_cast<int>(launches.size());
}

cudaGraphExec_t Graphs::capture(const Bucket& bucket, cudaStream_t stream) {
  while (bucket.timed && events_.size() < bound_.nodes.size() + 1) {
    events_.push_back(nullptr);
    check(cudaEventCreate(&events_.back()));
  }
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  cudaGraph_t graph = nullptr;
  try {
    enqueue(bucket, stream);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(result);
  return executable;
}

void Graphs::enqueue(const Bucket& bucket, cudaStream_t stream) {
  block_.copy(bucket.rows, bucket.outputs, stream);
  const Context context{memory_,        block_.view(bucket.rows, bucket.outputs),
                        bucket.rows,    bucket.outputs,
                        bucket.longest, memory_.scratch(),
                        stream,         processors_,
                        architecture_,  true};
  const auto mark = [&](size_t i) {
    if (bucket.timed) check(cudaEventRecordWithFlags(events_[i], stream, cudaEventRecordExternal));
  };
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    mark(i);
    // Rows of outputs only: with none of them there is nothing to launch.
    std::vector<Launch> launches;
    add_launches(bound_.program, bound_.nodes[i], {bucket.rows, bucket.longest, architecture_}, launches);
    for (const Launch& launch : launches) launch.kernel->launch(bound_.program, *launch.op, context);
  }
  mark(bound_.nodes.size());
}

}  // namespace sluice::backend::cuda
