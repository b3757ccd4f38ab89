#include "backend/cuda/graphs.h"

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/resources.h"
#include "base/check.h"

namespace sluice::backend::cuda {

Graphs::Graphs(const Bound& bound, const Memory& memory, const StepBlock& block, const Likeliest& likeliest)
    : bound_(bound), memory_(memory), block_(block), likeliest_(likeliest) {}

Graphs::~Graphs() { clear(); }

void Graphs::clear() {
  for (const auto& [bucket, captured] : graphs_) cudaGraphExecDestroy(captured.graph);
  graphs_.clear();
}

void Graphs::launch(const Bucket& bucket, cudaStream_t stream) {
  Captured& captured = graphs_[bucket];
  if (captured.graph == nullptr) capture(bucket, stream, captured);
  check(cudaGraphLaunch(captured.graph, stream));
}

void Graphs::op_times(const Bucket& bucket, cudaStream_t stream, std::vector<LaunchTime>& times) {
  const Captured& captured = graphs_.at(bucket);
  const std::vector<LaunchTime>& launches = captured.times->read(stream);
  times.resize(bound_.nodes.size());
  for (size_t i = 0; i < times.size(); ++i) {
    const size_t first = captured.first[i], end = captured.first[i + 1];
    times[i] = {launches[first].begin_ns, launches[end - 1].end_ns};
  }
}

int Graphs::kernels(const Bucket& bucket) const {
  size_t count = 0;
  for (size_t i = 0; i < bound_.nodes.size(); ++i) count += launches(bucket, i).size();
  return static_cast<int>(count);
}

void Graphs::capture(const Bucket& bucket, cudaStream_t stream, Captured& captured) {
  if (bucket.timed) {
    captured.first = first_launches(bucket);
    captured.times = std::make_unique<LaunchTimes>(captured.first.back());
  }
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  cudaGraph_t graph = nullptr;
  try {
    enqueue(bucket, stream, captured.times.get());
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph));
  const cudaError_t result = cudaGraphInstantiate(&captured.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(result);
}

std::vector<size_t> Graphs::first_launches(const Bucket& bucket) const {
  LaunchLog log;
  Context asked = context(bucket, nullptr);
  asked.log = &log;
  std::vector<size_t> first = {0};
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    for (const Launch& launch : launches(bucket, i)) {
      launch.kernel->launch(bound_.program, *launch.op, asked);
      asked.previous = launch.op;
    }
    CHECK(log.list().size() > first.back(), "op {} launches nothing", i);
    first.push_back(log.list().size());
  }
  return first;
}

Context Graphs::context(const Bucket& bucket, cudaStream_t stream) const {
  return {.memory = memory_,
          .step = block_.view(bucket.rows, bucket.outputs, bucket.turn),
          .step_rows = bucket.rows,
          .output_rows = bucket.outputs,
          .longest = bucket.longest,
          .prompts_alone = bucket.prompts_alone,
          .scratch = memory_.scratch(),
          .drawn = likeliest_.drawn(),
          .stream = stream,
          .processors = bound_.device.processors,
          .architecture = bound_.device.architecture,
          .overlap = true};
}

std::vector<Launch> Graphs::launches(const Bucket& bucket, size_t i) const {
  std::vector<Launch> list;
  add_launches(bound_.program, bound_.nodes[i], bound_.device.of(bucket.rows, bucket.longest), list);
  return list;
}

std::vector<LaunchResources> Graphs::resources(const Bucket& bucket, size_t i) const {
  LaunchLog log;
  Context asked = context(bucket, nullptr);
  asked.log = &log;
  for (const Launch& launch : launches(bucket, i)) launch.kernel->launch(bound_.program, *launch.op, asked);
  return log.list();
}

void Graphs::enqueue(const Bucket& bucket, cudaStream_t stream, LaunchTimes* times) {
  block_.copy(bucket.rows, bucket.outputs, bucket.turn, stream);
  Context step = context(bucket, stream);
  step.times = times;
  step.launches = static_cast<uint32_t>(bound_.nodes.size());
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    step.launch = static_cast<uint32_t>(i);
    // Rows of outputs only: with none of them there is nothing to launch.
    for (const Launch& launch : launches(bucket, i)) {
      launch.kernel->launch(bound_.program, *launch.op, step);
      step.previous = launch.op;
    }
  }
  if (!bucket.likeliest) return;
  step.times = nullptr;  // no op of the list
  likeliest_.enqueue(step, memory_.rows(bound_.program.output()), bucket.outputs,
                     block_.draws(bucket.rows, bucket.outputs, bucket.turn), bucket.turn);
}

}  // namespace sluice::backend::cuda
