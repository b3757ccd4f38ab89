#include "backend/cuda/graphs.h"

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/resources.h"

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
  size_t count = 0;
  for (size_t i = 0; i < bound_.nodes.size(); ++i) count += launches(bucket, i).size();
  return static_cast<int>(count);
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

Context Graphs::context(const Bucket& bucket, cudaStream_t stream) const {
  return {.memory = memory_,
          .step = block_.view(bucket.rows, bucket.outputs),
          .step_rows = bucket.rows,
          .output_rows = bucket.outputs,
          .longest = bucket.longest,
          .scratch = memory_.scratch(),
          .stream = stream,
          .processors = processors_,
          .architecture = architecture_,
          .overlap = true};
}

std::vector<Launch> Graphs::launches(const Bucket& bucket, size_t i) const {
  std::vector<Launch> list;
  add_launches(bound_.program, bound_.nodes[i], {bucket.rows, bucket.longest, architecture_}, list);
  return list;
}

std::string Graphs::resources(const Bucket& bucket, size_t i) const {
  LaunchLog log;
  Context asked = context(bucket, nullptr);
  asked.log = &log;
  for (const Launch& launch : launches(bucket, i)) launch.kernel->launch(bound_.program, *launch.op, asked);
  std::string text;
  for (const LaunchResources& launch : log.list()) text += (text.empty() ? "" : " + ") + launch.text();
  return text;
}

void Graphs::enqueue(const Bucket& bucket, cudaStream_t stream) {
  block_.copy(bucket.rows, bucket.outputs, stream);
  Context step = context(bucket, stream);
  const auto mark = [&](size_t i) {
    if (bucket.timed) check(cudaEventRecordWithFlags(events_[i], stream, cudaEventRecordExternal));
  };
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    mark(i);
    // Rows of outputs only: with none of them there is nothing to launch.
    for (const Launch& launch : launches(bucket, i)) {
      launch.kernel->launch(bound_.program, *launch.op, step);
      step.previous = launch.op;
    }
  }
  mark(bound_.nodes.size());
}

}  // namespace sluice::backend::cuda
