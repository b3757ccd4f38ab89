#include "backend/cuda/host/graphs.h"

#include <algorithm>

#include "backend/cuda/host/collectives.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/resources.h"
#include "backend/cuda/host/stream_weights.h"
#include "base/check.h"
#include "program/op_info.h"

namespace sluice::backend::cuda {

namespace {

/// Graphs that a step takes: one, or one for each of its parts that has ops, and for the first.
size_t graphs_of_step(const Bound& bound) {
  size_t count = 0;
  for (const program::Range& part : bound.parts()) count += part.first == 0 || part.count() > 0;
  return count;
}

/// Whether rows that give logits go from place to place: of a step without outputs nobody waits for them.
bool is_copy_of_outputs(const program::Program& program, const program::Op& op) {
  const auto* copy = std::get_if<program::Copy>(&op.args);
  return copy != nullptr && program[copy->in ? copy->in.id : copy->out.id].shape[0] == program::kOutputRows;
}

/// Whether the launch before has done all that this one is for.
bool is_given(const StepPlan& plan, const StepPlan::Launch& launch) {
  return launch.consumes && form_info(plan.passed[*launch.consumes].form).space == FormSpace::Result;
}

/// Memory that all graphs of a step take.
int64_t step_bytes(const Bound& bound) {
  constexpr int64_t kOpBytes = 9 << 10;  // 8.4 KB on an H100 (fairy-tales.gguf, 59 ops, 34 graphs)
  return static_cast<int64_t>(bound.nodes.size()) * kOpBytes;
}

}  // namespace

std::vector<Bucket> serving_buckets(const Bound& bound, const program::CompileOptions& options) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  constexpr int64_t kMostDrafted = 8;  // rows of an answer with its drafts (program::Facts)
  const bool has_logits = bound.program.output() != program::kNoTensor;  // or another place has them
  std::vector<Bucket> list;
  for (const int64_t rows : row_buckets(options)) {
    const int64_t most = output_bucket(rows, rows, options);
    for (int64_t outputs = output_bucket(rows, 1, options);; outputs = most) {
      for (const int64_t context : context_buckets(longest_context(options))) {
        for (int step_slot = 0; step_slot < kStepSlots; ++step_slot) {
          Bucket bucket{.rows = rows,
                        .outputs = outputs,
                        .longest = context,
                        .top_k = has_logits,
                        .step_slot = step_slot};
          list.push_back(bucket);
          if (rows <= kMostDrafted && outputs > 1 && !options.batch_invariant &&
              groups_rows(bound, rows, context)) {
            bucket.one_sequence = true;
            list.push_back(bucket);
          }
          bucket.prompts_alone = true;
          if (rows >= kPromptRows) list.push_back(bucket);
        }
      }
      if (outputs == most) break;
    }
  }
  if (const std::vector<program::Range> parts = bound.parts(); parts.size() > 1) {
    std::vector<Bucket> of_parts;
    for (Bucket bucket : list) {
      if (bucket.step_slot > 0) continue;
      bucket.top_k = false;
      for (bucket.part = 0; bucket.part < static_cast<int>(parts.size()); ++bucket.part) {
        if (bucket.part == 0 || parts[static_cast<size_t>(bucket.part)].count() > 0)
          of_parts.push_back(bucket);
      }
    }
    list = std::move(of_parts);
  }
  std::stable_partition(list.begin(), list.end(), [](const Bucket& b) { return b.rows == b.outputs; });
  const auto most =
      static_cast<size_t>(kMostBytes / std::max(int64_t{1}, step_bytes(bound))) * graphs_of_step(bound);
  if (list.size() > most) list.resize(most);
  return list;
}

bool groups_rows(const Bound& bound, int64_t rows, int64_t longest) {
  constexpr int64_t kMost = 256;  // the queries of more fill a device by themselves
  if (rows > kMost) return false;
  // From where on it is sooner (one H200). GLM-4.7-Flash: 8 rows behind 3,072 positions take as long either
  // way, 4 behind 5,700 likewise, two are never quicker. Qwen3-30B-A3B and Qwen3-8B: 8 rows behind 600 take
  // less, 4 behind 2,048 and 16 behind 600 take more. Code of 8.0 on that H200 was not slower by it wherever
  // it was measured, from 4 rows on.
  const bool latent = (rows - 2) * longest >= 20000;
  const bool made = (rows - 3) * longest >= 5000, grouped = rows > 2 && longest > 1024;
  return std::ranges::any_of(bound.plan(rows, longest).launches, [&](const StepPlan::Launch& launch) {
    return ((launch.kernel == &kMlaAttendSm90 || launch.kernel == &kMlaAttendSm80) && latent) ||
           (launch.kernel == &kGqaAttend && made) || (launch.kernel == &kAttendGqa && grouped);
  });
}

int64_t graph_bytes(const Bound& bound, size_t graphs) {
  const size_t each = graphs_of_step(bound);
  return step_bytes(bound) * static_cast<int64_t>((graphs + each - 1) / each);
}

int64_t output_bucket(int64_t rows, int64_t outputs, const program::CompileOptions& options) {
  return outputs <= 1 && !options.batch_invariant ? 1 : std::min(rows, options.max_outputs);
}

Graphs::Graphs(const Bound& bound, const Memory& memory, const StepBlock& block, const TopK& top_k)
    : bound_(bound), memory_(memory), block_(block), top_k_(top_k), parts_(bound.parts()) {
  for (const Node& node : bound.nodes) {
    copies_outputs_ = copies_outputs_ || is_copy_of_outputs(bound.program, node.op);
    tokens_everywhere_ = tokens_everywhere_ || (bound.collectives != nullptr &&
                                                std::holds_alternative<program::AllReduce>(node.op.args));
  }
}

Graphs::~Graphs() { clear(); }

void Graphs::clear() {
  for (const auto& [bucket, captured] : graphs_) cudaGraphExecDestroy(captured.graph);
  graphs_.clear();
}

void Graphs::prepare(const std::vector<Bucket>& buckets, cudaStream_t stream) {
  for (const Bucket& bucket : buckets) {
    Captured& captured = graphs_[bucket];
    if (captured.graph == nullptr) capture(bucket, stream, captured);
    check(cudaGraphUpload(captured.graph, stream));
  }
}

int64_t Graphs::bytes() const { return graph_bytes(bound_, graphs_.size()); }

void Graphs::launch(const Bucket& bucket, cudaStream_t stream) {
  if (bucket.part > 0 && parts_[static_cast<size_t>(bucket.part)].count() == 0) return;
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
    const int64_t ended = launches[end - 1].end_ns;
    times[i] = {first < end ? launches[first].begin_ns : ended, ended};
  }
}

int Graphs::kernels(const Bucket& bucket) const {
  return static_cast<int>(bound_.plan(bucket.rows, bucket.longest).launches.size());
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
  const StepPlan& plan = bound_.plan(bucket.rows, bucket.longest);
  std::vector<size_t> first = {0};
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    enqueue_op(bucket, i, asked);
    CHECK(log.list().size() > first.back() || program::info(bound_.nodes[i].op).across_places ||
              is_given(plan, plan.launches[plan.first[i]]),
          "op {} launches nothing", i);
    first.push_back(log.list().size());
  }
  return first;
}

Context Graphs::context(const Bucket& bucket, cudaStream_t stream) const {
  return {.memory = memory_,
          .step = block_.view(bucket.rows, bucket.outputs, bucket.step_slot),
          .step_rows = bucket.rows,
          .output_rows = bucket.outputs,
          .longest = bucket.longest,
          .prompts_alone = bucket.prompts_alone,
          .one_sequence = bucket.one_sequence,
          .scratch = memory_.scratch() + 2 * bound_.memory.form_bytes,
          .drawn = top_k_.drawn(),
          .stream = stream,
          .sm_count = bound_.device.sm_count,
          .architecture = bound_.device.architecture,
          .uses_pdl = true};
}

std::vector<LaunchResources> Graphs::resources(const Bucket& bucket, size_t i) const {
  LaunchLog log;
  Context asked = context(bucket, nullptr);
  asked.log = &log;
  enqueue_op(bucket, i, asked);
  return log.list();
}

FormBuffer Graphs::form_buffer(const StepPlan& plan, const Passed& passed, bool producer) const {
  const PlanMemory& memory = bound_.memory;
  auto* const mailbox = reinterpret_cast<char*>(block_.mailbox());
  const auto slots = [&](int64_t at) { return mailbox + at * int64_t{sizeof(uint64_t)}; };
  const int64_t zeroed = memory.mailbox_slots() - memory.zeroed_slots;
  FormBuffer form_buffer{plan.launches[producer ? passed.consumer : passed.producer].op, nullptr,
                         static_cast<uint32_t>(plan.launches[passed.producer].node), nullptr};
  switch (form_info(passed.form).space) {
    case FormSpace::Result: break;
    case FormSpace::Memory: form_buffer.at = memory_.scratch() + passed.at; break;
    case FormSpace::Flagged: form_buffer.at = slots(memory.flagged_slots + passed.at); break;
    case FormSpace::Zeroed:
      form_buffer.at = slots(zeroed + passed.at);
      if (!producer) form_buffer.clear = slots(zeroed + *passed.clear);
      break;
  }
  return form_buffer;
}

void Graphs::enqueue_op(const Bucket& bucket, size_t i, Context step) const {
  const StepPlan& plan = bound_.plan(bucket.rows, bucket.longest);
  const int64_t zeroed = bound_.memory.mailbox_slots() - bound_.memory.zeroed_slots;
  step.launch = static_cast<uint32_t>(i);
  for (size_t k = plan.first[i]; k < plan.first[i + 1]; ++k) {
    const StepPlan::Launch& launch = plan.launches[k];
    FormBuffer taken{}, given{}, behind{};
    if (is_given(plan, launch)) continue;
    if (launch.consumes) taken = form_buffer(plan, plan.passed[*launch.consumes], false);
    if (launch.produces) {
      const Passed& passed = plan.passed[*launch.produces];
      given = form_buffer(plan, passed, true);
      const StepPlan::Launch& other = plan.launches[passed.consumer];
      if (is_given(plan, other) && other.produces) {
        behind = form_buffer(plan, plan.passed[*other.produces], true);
        given.behind = &behind;
      }
    }
    step.consumes = launch.consumes ? &taken : nullptr;
    step.produces = launch.produces ? &given : nullptr;
    step.zeroed = block_.mailbox() + zeroed + launch.zeroed;
    if (!program::info(*launch.op).across_places) {
      launch.kernel->launch(bound_.program, *launch.op, step);
    } else if (step.log == nullptr) {
      bound_.collectives->enqueue(*launch.op, bound_.program, step);
    }
  }
}

void Graphs::enqueue(const Bucket& bucket, cudaStream_t stream, LaunchTimes* times) {
  const bool whole = bucket.part < 0;
  if (bucket.part <= 0) block_.copy(bucket.rows, bucket.outputs, bucket.step_slot, stream);
  Context step = context(bucket, stream);
  step.times = times;
  step.launches = static_cast<uint32_t>(bound_.nodes.size());
  const program::Range part = whole ? program::Range{0, static_cast<int64_t>(bound_.nodes.size())}
                                    : parts_[static_cast<size_t>(bucket.part)];
  for (int64_t i = part.first; i < part.last; ++i) {
    const program::Op& op = bound_.nodes[static_cast<size_t>(i)].op;
    if (bucket.no_outputs && is_copy_of_outputs(bound_.program, op)) continue;
    enqueue_op(bucket, static_cast<size_t>(i), step);
  }
  if (bucket.top_k) {
    step.times = nullptr;  // no op of the list
    top_k_.enqueue(step, memory_.rows(bound_.program.output()), bucket.outputs,
                   block_.draws(bucket.rows, bucket.outputs, bucket.step_slot), bucket.step_slot);
  }
  // The next step may begin with what rank 0 has drawn.
  if (tokens_everywhere_) bound_.collectives->hand_out(top_k_.drawn(), bucket.outputs, stream);
}

}  // namespace sluice::backend::cuda
