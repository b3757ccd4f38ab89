#include "backend/cuda/host/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/cuda/host/architecture.h"
#include "backend/cuda/host/bind.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/device_clock.h"
#include "backend/cuda/host/graphs.h"
#include "backend/cuda/host/launch_times.h"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/page_copies.h"
#include "backend/cuda/host/row_copies.h"
#include "backend/cuda/host/slot_lane.h"
#include "backend/cuda/host/step_block.h"
#include "backend/cuda/host/stream.h"
#include "backend/cuda/host/stream_weights.h"
#include "backend/cuda/small/top_k.h"
#include "base/check.h"
#include "base/clock.h"
#include "program/op_info.h"
#include "program/slot_reader.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Logits of this many bytes come back to pinned memory, more of them to ordinary memory.
constexpr int64_t kMostPinned = 128 << 20;

std::string source(const std::string& path) {
  const size_t at = path.rfind("/src/");
  return at == std::string::npos ? path : path.substr(at + 1);
}

/// A step that was submitted, and what its outputs are to give.
struct InFlight {
  Ticket ticket{};
  Bucket bucket;
  bool timed = false;
  std::vector<int32_t> whole;      ///< outputs that give logits
  std::vector<RowResult> outputs;  ///< filled when it is collected
};

/// Of page tables for which there is room from the start: graphs know where they lie.
int64_t table_entries(const CompileOptions& options) {
  const int64_t pages = (longest_context(options) + kPageRows - 1) / kPageRows;
  return options.warm ? options.max_outputs * pages : 0;
}

class CudaExecutable : public Executable, public SlotLane, public SlotReader {
 public:
  /// Of the current device, to which its calls go from then on.
  CudaExecutable(const Source& source, std::shared_ptr<const Weights> weights, const CompileOptions& options,
                 bool loaded, const Collectives* collectives)
      : SlotLane(current_device(), source, weights, options.stream_bytes_per_second),
        device_(current_device()),
        options_(options),
        bound_(bind_all(source.program, options, sizes_on(device_), collectives)),
        row_buckets_(row_buckets(options)),
        context_buckets_(context_buckets(longest_context(options))),
        caches_of_(dynamic_cast<CudaExecutable*>(options.caches_of)),
        own_stream_(stream_beside(options)),
        stream_(*own_stream_),
        memory_(bound_.leaves, source.weights, weights, options, bound_.memory.bytes(),
                bound_.longest_expansion, caches_of_ != nullptr ? &caches_of_->memory_ : nullptr),
        block_(options.max_rows, options.max_outputs, table_entries(options), bound_.memory.mailbox_slots(),
               source.program.has_states()),
        top_k_(options.max_outputs),
        graphs_(bound_, memory_, block_, top_k_) {
    pinned_logits_bytes_ = std::min(kMostPinned, options.max_outputs * row_bytes());
    allocate_pinned(pinned_logits_, pinned_logits_bytes_);
    for (InFlight& step : steps_) {
      step.whole.reserve(static_cast<size_t>(options.max_outputs));
      step.outputs.reserve(static_cast<size_t>(options.max_outputs));
    }
    for (const Op& op : bound_.program.ops()) {
      if (!info(op).across_places) continue;
      info(op).operands(op, [&](const char*, TensorId id, bool) {
        if (id == kNoTensor) return;
        const int64_t rows = Program::rows(bound_.program[id], options.max_rows, options.max_outputs);
        staged_bytes_ = std::max(staged_bytes_, 4 * rows * static_cast<int64_t>(memory_.rows(id).row_stride));
      });
    }
    if (loaded) stream_weights(source.weights, *weights);
    if (loaded) allocate_pinned(staged_, staged_bytes_);
    if (loaded) copies_.emplace(memory_, kept_format(), stream_);
    if (options.warm && loaded) graphs_.prepare(serving_buckets(bound_, options), stream_);
  }
  ~CudaExecutable() override {
    cudaFreeHost(pinned_logits_);
    cudaFreeHost(staged_);
  }
  CudaExecutable(const CudaExecutable&) = delete;
  CudaExecutable& operator=(const CudaExecutable&) = delete;

  Facts facts() const override {
    if (!loads_.empty()) return {};
    return {
        .steps_in_flight = kStepSlots, .top = true, .drawn = true, .parts = bound_.collectives == nullptr};
  }

  /// A timed step is the same graph, captured once more with a place for every launch's times.
  Ticket submit(const Step& step) override {
    const OnDevice on(device_);
    CHECK(in_flight_ < kStepSlots, "{} steps are in flight", in_flight_);
    const int step_slot = (first_step_slot_ + in_flight_) % kStepSlots;
    InFlight& flight = steps_[static_cast<size_t>(step_slot)];
    CHECK(in_flight_ == 0 || no_logits_in_flight(), "the step before this one gives logits");
    if (step.timed && !clock_behind_ns_) clock_behind_ns_ = device_clock_behind(stream_);
    const int64_t begin = now_ns();
    flight.outputs.assign(step.input.output_rows.size(), RowResult{});
    flight.whole.clear();
    for (size_t i = 0; i < flight.outputs.size(); ++i)
      if (step.want(static_cast<int64_t>(i)).logits) flight.whole.push_back(static_cast<int32_t>(i));
    flight.timed = step.timed;
    flight.bucket = launch(step, step_slot,
                           (options_.warm || flight.whole.size() < flight.outputs.size()) && loads_.empty());
    flight.ticket = Ticket{++submitted_};
    ++in_flight_;
    if (step.timed) timed_ = {flight.bucket, begin, 0};
    return flight.ticket;
  }

  /// Waits for the step that was submitted first.
  StepResult collect(Ticket ticket) override {
    const OnDevice on(device_);
    InFlight& flight = steps_[static_cast<size_t>(first_step_slot_)];
    CHECK(in_flight_ > 0 && flight.ticket == ticket, "step {} is not the first in flight",
          static_cast<uint64_t>(ticket));
    const int step_slot = first_step_slot_;
    first_step_slot_ = --in_flight_ > 0 ? kStepSlots - 1 - step_slot : 0;
    const std::span<RowResult> outputs = flight.outputs;
    // Whole rows are waited for with their copies.
    if (flight.bucket.top_k || flight.whole.empty()) ended_[static_cast<size_t>(step_slot)].wait();
    if (flight.bucket.top_k) {
      const auto count = static_cast<int64_t>(outputs.size());
      constexpr auto kTop = static_cast<size_t>(kMaxTopK);
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i].top = top_k_.found(count, step_slot).subspan(i * kTop, kTop);
        outputs[i].drawn = top_k_.drawn(count, step_slot)[i];
      }
    }
    if (!flight.whole.empty()) fetch(flight.whole, outputs);
    if (flight.timed) timed_.end_ns = now_ns();
    return {.outputs = outputs};
  }

  /// Returns at once: what peek() reads waits for it.
  void run_part(const Step& step, size_t part) override {
    const OnDevice on(device_);
    if (part == 0) {
      wait_for_staged();  // the step before has taken its data
      part_bucket_ = filled(step, 0);
    }
    part_bucket_.part = static_cast<int>(part);
    graphs_.launch(part_bucket_, stream_);
  }

  /// The clocks of host and device drift apart, but kernels begin after their launch, and end before their
  /// results are here.
  void fetch_times(StepTimes& times) override {
    const OnDevice on(device_);
    graphs_.op_times(timed_.bucket, stream_, op_times_);
    const int64_t least = launched_ns_ - op_times_.front().begin_ns;
    const int64_t most = timed_.end_ns - op_times_.back().end_ns;
    const int64_t behind = std::max(least, std::min(most, *clock_behind_ns_));
    times.workers = 1;
    times.parts.clear();
    for (const LaunchTime& op : op_times_) times.parts.push_back({op.begin_ns + behind, op.end_ns + behind});
    times.begin_ns = timed_.begin_ns;
    times.end_ns = std::max(timed_.end_ns, times.parts.back().end_ns);
  }

  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    const OnDevice on(device_);
    if (stages(id, values.size())) {
      check(cudaMemcpyAsync(staged_, memory_.rows(id).data, values.size_bytes(), cudaMemcpyDeviceToHost,
                            stream_));
      wait_for_staged();
      return take_staged(staged_, id, values);
    }
    read_numbers(memory_.rows(id), rows, program()[id].type == quant::Type::I32, values, stream_);
  }
  void peek_all(std::span<const Peek> peeks) override {
    const OnDevice on(device_);
    size_t bytes = 0;
    const bool staged = std::ranges::all_of(peeks, [&](const Peek& one) {
      bytes += one.values.size_bytes();
      return stages(one.id, one.values.size()) && static_cast<int64_t>(bytes) <= staged_bytes_;
    });
    if (!staged) return Executable::peek_all(peeks);
    char* at = staged_;
    for (const Peek& one : peeks) {
      check(cudaMemcpyAsync(at, memory_.rows(one.id).data, one.values.size_bytes(), cudaMemcpyDeviceToHost,
                            stream_));
      at += one.values.size_bytes();
    }
    wait_for_staged();
    at = staged_;
    for (const Peek& one : peeks) {
      take_staged(at, one.id, one.values);
      at += one.values.size_bytes();
    }
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    const OnDevice on(device_);
    if (stages(id, values.size())) {
      if (staged_until_ + static_cast<int64_t>(values.size_bytes()) > staged_bytes_) wait_for_staged();
      char* const at = staged_ + staged_until_;
      staged_until_ += static_cast<int64_t>(values.size_bytes());
      if (program()[id].type == quant::Type::I32) {
        std::copy_n(values.begin(), values.size(), reinterpret_cast<int32_t*>(at));
      } else {
        std::memcpy(at, values.data(), values.size_bytes());
      }
      check(cudaMemcpyAsync(memory_.rows(id).data, at, values.size_bytes(), cudaMemcpyHostToDevice, stream_));
      return;
    }
    write_numbers(memory_.rows(id), rows, program()[id].type == quant::Type::I32, values, stream_);
  }

  void take_from(TensorId weight, SlotFiller& filler, TensorId slots,
                 std::span<const int32_t> slot_of) override {
    const auto* lane = dynamic_cast<const SlotLane*>(&filler);
    CHECK(lane != nullptr && weight_stream_, "slots of another backend");
    weight_stream_->take_from(weight, lane->planes_of(slots), slot_of);
  }

  void take_rows(Executable& from, TensorId id, std::span<const RowCopy> rows) override {
    const OnDevice on(device_);
    auto* giver = dynamic_cast<CudaExecutable*>(&from);
    CHECK(giver != nullptr && giver->own_stream_ == own_stream_,
          "executables that are not beside each other");
    copy_rows(giver->memory_.rows(id), memory_.rows(program().hidden_in()), rows, stream_);
  }

  PageCopier* copier() override { return copies_ ? &*copies_ : nullptr; }
  const Program& program() const override { return bound_.program; }

  /// The kernels of the smallest steps with what they take, and those of the largest where they are others.
  std::vector<BoundKernel> bound() const override {
    const OnDevice on(device_);
    const Bucket least{row_buckets_.front(), output_bucket(row_buckets_.front(), 1, options_),
                       context_buckets_.front()};
    const Bucket most{options_.max_rows, options_.max_outputs, context_buckets_.back()};
    std::vector<BoundKernel> list;
    for (size_t i = 0; i < bound_.nodes.size(); ++i) {
      BoundKernel bound = kernel_of(i, least);
      if (kernel_names(i, most) != kernel_names(i, least)) {
        bound.name += fmt::format("; rows {}: ", most.rows);
        add_kernels(i, most, bound);
      }
      list.push_back(std::move(bound));
    }
    return list;
  }
  std::vector<BoundKernel> bound_for(int64_t rows, int64_t context) const override {
    const OnDevice on(device_);
    const int64_t step_rows = bucket_of(row_buckets_, rows);
    const int64_t outputs = output_bucket(step_rows, std::min(rows, options_.max_outputs), options_);
    const Bucket bucket{step_rows, outputs, bucket_of(context_buckets_, context)};
    std::vector<BoundKernel> list;
    for (size_t i = 0; i < bound_.nodes.size(); ++i) list.push_back(kernel_of(i, bucket));
    return list;
  }
  int64_t memory_bytes() const override {
    return memory_.bytes() + block_.bytes() + top_k_.bytes() + graphs_.bytes();
  }

 private:
  static std::shared_ptr<Stream> stream_beside(const CompileOptions& options) {
    const auto* other = dynamic_cast<const CudaExecutable*>(options.beside);
    return other != nullptr ? other->own_stream_ : std::make_shared<Stream>();
  }
  std::string kept_format() const {
    return fmt::format("cuda, rows of layout 1: {}{}", cache_shapes(bound_.program),
                       options_.batch_invariant ? ", batch-invariant" : "");
  }
  /// The kernels of op i, with what they take from the launches before them and give to those behind.
  std::string kernel_names(size_t i, const Bucket& bucket) const {
    const StepPlan& plan = bound_.plan(bucket.rows, bucket.longest);
    const auto form = [&](const char* verb, const std::optional<size_t>& passed) {
      return passed ? fmt::format(" ({} {})", verb, form_info(plan.passed[*passed].form).name) : "";
    };
    std::string text;
    for (size_t k = plan.first[i]; k < plan.first[i + 1]; ++k) {
      const StepPlan::Launch& launch = plan.launches[k];
      text += (text.empty() ? "" : " + ") + std::string(launch.kernel->name) +
              form("consumes", launch.consumes) + form("produces", launch.produces);
    }
    return text;
  }
  BoundKernel kernel_of(size_t i, const Bucket& bucket) const {
    if (info(bound_.nodes[i].op).across_places) return {"exchange between places", __FILE__, __LINE__, {}};
    const StepPlan& plan = bound_.plan(bucket.rows, bucket.longest);
    const Kernel& first = *plan.launches[plan.first[i]].kernel;
    BoundKernel bound{"", source(first.file), first.line};
    add_kernels(i, bucket, bound);
    return bound;
  }

  /// Adds a bucket's kernels to the name, with what they take, and the functions that they start.
  void add_kernels(size_t i, const Bucket& bucket, BoundKernel& bound) const {
    std::string text;
    for (const LaunchResources& launch : graphs_.resources(bucket, i)) {
      text += (text.empty() ? ": " : " + ") + launch.text();
      const auto& known = bound.functions;
      if (std::find(known.begin(), known.end(), launch.function) == known.end())
        bound.functions.push_back(launch.function);
    }
    bound.name += kernel_names(i, bucket) + text;
  }

  /// Whether values go through pinned memory: of places, without gaps.
  bool stages(TensorId id, size_t count) const {
    const Rows<float> view = memory_.rows(id);
    return static_cast<int64_t>(count * sizeof(float)) <= staged_bytes_ &&
           (view.heads == 1 || view.head_stride == view.columns) &&
           view.row_stride == int64_t{view.heads} * view.columns;
  }
  void take_staged(const char* from, TensorId id, std::span<float> values) const {
    if (program()[id].type == quant::Type::I32) {
      std::copy_n(reinterpret_cast<const int32_t*>(from), values.size(), values.begin());
    } else {
      std::memcpy(values.data(), from, values.size_bytes());
    }
  }
  /// Until nothing on its way needs pinned memory any more.
  void wait_for_staged() {
    stream_.wait();
    staged_until_ = 0;
  }

  /// Whether no step in flight is to give logits, which the next one would overwrite.
  bool no_logits_in_flight() const { return steps_[static_cast<size_t>(first_step_slot_)].whole.empty(); }

  int64_t row_bytes() const {
    if (bound_.program.output() == kNoTensor) return 0;  // another place has it
    return bound_.program[bound_.program.output()].columns() * static_cast<int64_t>(sizeof(float));
  }

  /// Lays a step out and says which bucket is its.
  Bucket filled(const Step& step, int step_slot) {
    const StepInput& input = step.input;
    CHECK(input.rows() >= 1 && input.rows() <= options_.max_rows, "{} rows", input.rows());
    CHECK(input.outputs() <= options_.max_outputs, "{} output rows", input.outputs());
    const int64_t longest = 1 + *std::max_element(input.positions.begin(), input.positions.end());
    const int64_t rows = bucket_of(row_buckets_, input.rows());
    Bucket bucket{rows,
                  output_bucket(rows, input.outputs(), options_),
                  bucket_of(context_buckets_, longest),
                  false,
                  step.timed,
                  false,
                  -1,
                  step_slot};
    if (block_.fill(step, bucket.rows, bucket.outputs, bucket.longest, step_slot, stream_)) graphs_.clear();
    bucket.prompts_alone = block_.prompts_alone();
    bucket.one_sequence = !options_.batch_invariant && groups_rows(bound_, bucket.rows, bucket.longest) &&
                          input.rows() > 1 && input.end_of_sequence(0) == input.rows();
    bucket.no_outputs = input.outputs() == 0 && bound_.collectives != nullptr && graphs_.copies_outputs();
    return bucket;
  }
  /// Enqueues a step.
  Bucket launch(const Step& step, int step_slot, bool top_k) {
    Bucket bucket = filled(step, step_slot);
    bucket.top_k = top_k && bound_.program.output() != kNoTensor;
    launched_ns_ = now_ns();
    loads_.empty() ? graphs_.launch(bucket, stream_) : launch_streaming(bucket);
    ended_[static_cast<size_t>(step_slot)].record(stream_);
    return bucket;
  }

  /// The same part by part, behind the copies of the weights that each needs.
  void launch_streaming(Bucket bucket) {
    CHECK(!bucket.timed, "steps with streamed weights are not timed");
    if (caches_of_ != nullptr) caches_of_->stream_.wait();
    weight_stream_->begin();
    size_t load = 0;
    for (size_t part = 0; part < graphs_.parts().size(); ++part) {
      const bool needs = load < loads_.size() && loads_[load].ops.first == graphs_.parts()[part].first &&
                         graphs_.parts()[part].count() > 0;
      if (needs) weight_stream_->wait(load, stream_);
      bucket.part = static_cast<int>(part);
      graphs_.launch(bucket, stream_);
      if (needs) weight_stream_->used(load++, stream_);
    }
  }
  void stream_weights(const WeightBytes& files, const Weights& weights) {
    loads_ = streamed_ops(bound_.program);
    if (loads_.empty()) return;
    std::vector<std::vector<StreamedWeight>> all;
    for (const StreamedOps& load : loads_) {
      std::vector<StreamedWeight>& list = all.emplace_back();
      for (const TensorId id : load.weights) {
        const Tensor& tensor = bound_.program[id];
        const std::span<const std::byte> file = files[static_cast<size_t>(id)];
        const Upload upload{tensor.type, file, planes_at(tensor, weights.at(file.data()).planes)};
        list.push_back({id, tensor.shape[0], upload});
      }
    }
    weight_stream_.emplace(std::move(all), options_.stream_bytes_per_second);
  }

  /// Brings the first head's columns of some outputs and waits for the stream.
  void fetch(std::span<const int32_t> whole, std::span<RowResult> outputs) {
    const Rows<float> from = memory_.rows(bound_.program.output());
    const auto bytes = static_cast<size_t>(row_bytes());
    char* to = pinned_logits_;
    if (const size_t all = bytes * whole.size(); static_cast<int64_t>(all) > pinned_logits_bytes_) {
      pageable_logits_.resize(all / sizeof(float));
      to = reinterpret_cast<char*>(pageable_logits_.data());
    }
    if (whole.size() == outputs.size()) {
      const size_t pitch = static_cast<size_t>(from.row_stride) * sizeof(float);
      check(cudaMemcpy2DAsync(to, bytes, from.data, pitch, bytes, whole.size(), cudaMemcpyDeviceToHost,
                              stream_));
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      if (whole.size() < outputs.size())
        check(cudaMemcpyAsync(to + i * bytes, from(whole[i]), bytes, cudaMemcpyDeviceToHost, stream_));
      outputs[static_cast<size_t>(whole[i])].logits = {reinterpret_cast<const float*>(to + i * bytes),
                                                       bytes / sizeof(float)};
    }
    stream_.wait();
  }

  int device_;
  CompileOptions options_;
  Bound bound_;
  std::vector<int64_t> row_buckets_, context_buckets_;
  CudaExecutable* caches_of_;  // its last step may still write to the caches that they share; or null
  std::shared_ptr<Stream> own_stream_;  // or that of the executable that it is beside
  Stream& stream_;
  Memory memory_;
  StepBlock block_;
  TopK top_k_;
  Graphs graphs_;
  std::optional<PageCopies> copies_;
  std::vector<StreamedOps> loads_;
  std::optional<WeightStream> weight_stream_;
  char* pinned_logits_ = nullptr;
  int64_t pinned_logits_bytes_ = 0;
  char* staged_ = nullptr;  // what goes from or to other places
  int64_t staged_bytes_ = 0, staged_until_ = 0;
  Bucket part_bucket_{};
  std::vector<float> pageable_logits_;  // where pinned memory has no room for them
  int64_t launched_ns_ = 0;
  std::array<Event, kStepSlots> ended_;
  std::array<InFlight, kStepSlots> steps_;   // by their slots
  int in_flight_ = 0, first_step_slot_ = 0;  // first_step_slot_: of the one that runs first
  uint64_t submitted_ = 0;
  std::optional<int64_t> clock_behind_ns_;
  struct {
    Bucket bucket{};
    int64_t begin_ns = 0, end_ns = 0;
  } timed_;  // the last timed step
  std::vector<LaunchTime> op_times_;
};

}  // namespace

int64_t warm_bytes(const Bound& bound, const CompileOptions& options) {
  if (!options.warm) return 0;
  return graph_bytes(bound, serving_buckets(bound, options).size()) +
         table_entries(options) * static_cast<int64_t>(sizeof(int32_t));
}

std::unique_ptr<Executable> make_executable(int device, const Source& source,
                                            std::shared_ptr<const Weights> weights,
                                            const CompileOptions& options, const Collectives* collectives) {
  const OnDevice on(device);
  const bool loaded = weights != nullptr;
  return std::make_unique<CudaExecutable>(source, std::move(weights), options, loaded, collectives);
}

}  // namespace sluice::backend::cuda
