#include "backend/vulkan/executable.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "backend/vulkan/recording.h"
#include "base/check.h"
#include "base/clock.h"
#include "program/derived.h"

namespace sluice::backend::vulkan {
namespace {

using namespace program;

int64_t bucket(int64_t count, int64_t most) {
  if (count <= kExactRows) return count;
  int64_t size = kExactRows;
  while (size < count) size *= 2;
  return std::min(size, most);
}

class VulkanExecutable : public Executable {
 public:
  VulkanExecutable(std::shared_ptr<Context> context, Program program, const WeightBytes& bytes,
                   std::shared_ptr<const Weights> weights, const CompileOptions& options)
      : context_(std::move(context)),
        program_(std::move(program)),
        bytes_(bytes),
        weights_(std::move(weights)),
        layout_(program_, options, context_->device->info().subgroup_size, context_->device->info().dot4),
        memory_(*context_, layout_) {
    bytes_.resize(program_.tensors().size());  // expansion added tensors, all of them activations
    data_ = std::make_unique<StepData>(Source{program_, bytes_}, layout_.step);
    grow_step_data(layout_.step.tables + options.cache_pages + 64);
  }

  Facts facts() const override { return {.top = true, .hidden = hidden_ != kNoTensor}; }

  Ticket submit(const Step& step) override {
    times_.begin_ns = now_ns();
    const StepInput& input = step.input;
    grow_step_data(data_->words(input));
    data_->fill(input, reinterpret_cast<uint32_t*>(memory_.step.mapped()));
    Recording& recording = recording_for(step);
    recording.run();
    give_outputs(step);
    if (step.timed) put_times(recording.times());
    times_.end_ns = now_ns();
    return {};
  }
  StepResult collect(Ticket) override { return {.outputs = outputs_}; }
  void fetch_times(StepTimes& times) override { times = times_; }

  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    std::vector<float> all = read(id, rows);
    size_t next = 0;
    each_element(id, rows, [&](int64_t at) { values[next++] = all[static_cast<size_t>(at)]; });
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    std::vector<float> all = read(id, rows);
    size_t next = 0;
    each_element(id, rows, [&](int64_t at) { all[static_cast<size_t>(at)] = values[next++]; });
    memory_.arena.write(begin_of(id), std::as_bytes(std::span(all)));
  }

  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return bound_for(1, kPageRows); }
  std::vector<BoundKernel> bound_for(int64_t rows, int64_t context) const override {
    return bound_kernels(layout_, {rows, std::min(rows, layout_.options.max_outputs), context});
  }
  int64_t memory_bytes() const override { return memory_.bytes(); }

 private:
  void grow_step_data(int64_t words) {
    if (memory_.step.bytes() >= words * 4) return;
    recordings_.clear();  // they know the old place
    memory_.step = Buffer(*context_->device, 2 * words * 4, Device::Place::Written);
  }

  /// What the host is given: likeliest tokens alone where nobody wants logits and outputs are not too many.
  void choose_results(const Step& step, Sizes& sizes) const {
    const auto any = [&](auto wants) {
      return step.wants.empty() || std::any_of(step.wants.begin(), step.wants.end(), wants);
    };
    sizes.logits = any([](const Want& w) { return w.logits; });
    if (step.wants.empty() || program_.output() == kNoTensor) return;
    const bool follows = any([](const Want& w) { return w.top || w.drawn || w.drafts > 0; });
    sizes.top = follows && Program::rows(program_[program_.output()], step.input.rows(),
                                         step.input.outputs()) <= kMostSorted;
    sizes.logits = sizes.logits || (follows && !sizes.top);
  }

  Recording& recording_for(const Step& step) {
    const StepInput& input = step.input;
    const CompileOptions& options = layout_.options;
    Sizes sizes{bucket(input.rows(), options.max_rows), bucket(input.outputs(), options.max_outputs)};
    choose_results(step, sizes);
    int64_t longest = 1;
    for (const int32_t position : input.positions) longest = std::max<int64_t>(longest, position + 1);
    sizes.longest = kPageRows;
    while (sizes.longest < longest) sizes.longest *= 2;
    // No step needs more stretches than fit into what was taken for them.
    sizes.longest = std::max(longest, std::min(sizes.longest, options.cache_pages * kPageRows));
    auto& recording = recordings_[{sizes.rows, sizes.outputs, stretches(layout_, sizes).positions,
                                   stretches(layout_, sizes).count, step.timed, sizes.logits, sizes.top}];
    if (!recording) {
      auto made = std::make_unique<Recording>(*context_, layout_, sizes, step.timed);
      made->record({program_, bytes_}, *weights_, *context_, memory_);
      recording = std::move(made);
    }
    return *recording;
  }

  void give_outputs(const Step& step) {
    outputs_.assign(step.input.output_rows.size(), {});
    if (outputs_.empty() || program_.output() == kNoTensor) return;
    const auto vocabulary = static_cast<size_t>(program_[program_.output()].columns());
    const auto* logits = reinterpret_cast<const float*>(memory_.results.mapped());
    Sizes given;
    choose_results(step, given);
    if (given.top) read_top();
    const bool wants_hidden =
        std::any_of(step.wants.begin(), step.wants.end(), [](const Want& w) { return w.hidden; });
    if (hidden_ != kNoTensor && wants_hidden) {
      states_.resize(outputs_.size() * static_cast<size_t>(program_[hidden_].columns()));
      peek(hidden_, static_cast<int64_t>(outputs_.size()), states_);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (given.top) outputs_[i].top = std::span(top_).subspan(i * kTop, kTop);
      if (given.logits) outputs_[i].logits = {logits + i * vocabulary, vocabulary};
      if (hidden_ == kNoTensor || !wants_hidden) continue;
      const auto columns = static_cast<size_t>(program_[hidden_].columns());
      outputs_[i].hidden = {states_.data() + i * columns, columns};
    }
  }

  /// Pairs of a logit and a token.
  void read_top() {
    const auto* pairs = reinterpret_cast<const float*>(memory_.results.mapped() + memory_.top_at);
    top_.resize(outputs_.size() * kTop);
    for (Likely& one : top_) {
      const auto token = static_cast<int32_t>(pairs[1]);
      one = token < 0 ? Likely{-std::numeric_limits<float>::infinity(), -1} : Likely{pairs[0], token};
      pairs += 2;
    }
  }

  /// The device's clock readings, put where the step began by the host's.
  void put_times(const std::vector<int64_t>& readings) {
    const size_t ops = program_.ops().size();
    times_.workers = readings.empty() ? 0 : 1;
    times_.parts.assign(ops, {times_.begin_ns, times_.begin_ns});
    for (size_t i = 0; i < ops && i + 1 < readings.size(); ++i)
      times_.parts[i] = {times_.begin_ns + readings[i], times_.begin_ns + readings[i + 1]};
  }

  int64_t begin_of(TensorId id) const {
    return layout_.plan.offset_bytes[static_cast<size_t>(program_.storage(id))] + 4 * program_[id].offset;
  }
  /// An activation's rows with what lies between them.
  std::vector<float> read(TensorId id, int64_t rows) const {
    const Tensor& tensor = program_[id];
    CHECK(begin_of(id) >= 0, "{} is in no op", tensor.name);
    const int64_t count = rows == 0 ? 0
                                    : (rows - 1) * tensor.stride[0] +
                                          (tensor.heads() - 1) * tensor.stride[1] + tensor.columns();
    std::vector<float> values(static_cast<size_t>(count));
    memory_.arena.read(begin_of(id), std::as_writable_bytes(std::span(values)));
    return values;
  }
  template <typename F>
  void each_element(TensorId id, int64_t rows, F visit) const {
    const Tensor& tensor = program_[id];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < tensor.heads(); ++h) {
        for (int64_t c = 0; c < tensor.columns(); ++c) visit(r * tensor.stride[0] + h * tensor.stride[1] + c);
      }
    }
  }

  std::shared_ptr<Context> context_;
  Program program_;
  WeightBytes bytes_;
  std::shared_ptr<const Weights> weights_;
  Layout layout_;
  Memory memory_;
  std::unique_ptr<StepData> data_;
  TensorId hidden_ = hidden_states(program_);
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, bool>, std::unique_ptr<Recording>>
      recordings_;
  StepTimes times_;
  std::vector<RowResult> outputs_;
  std::vector<float> states_;
  std::vector<Likely> top_;
};

}  // namespace

std::unique_ptr<Executable> make_executable(std::shared_ptr<Context> context, Program program,
                                            const WeightBytes& bytes, std::shared_ptr<const Weights> weights,
                                            const CompileOptions& options) {
  return std::make_unique<VulkanExecutable>(std::move(context), std::move(program), bytes, std::move(weights),
                                            options);
}

std::vector<BoundKernel> bound_kernels(const Layout& layout, const Sizes& sizes) {
  std::vector<BoundKernel> list;
  for (const Op& op : layout.program.ops()) {
    BoundKernel kernel;
    for (const Dispatch& dispatch : dispatches(layout, op, sizes)) {
      const std::string name = name_of(dispatch.shader);
      if (kernel.name.empty()) kernel = {name, "src/backend/vulkan/shaders/" + name + ".comp", 1};
    }
    list.push_back(kernel);
  }
  return list;
}

}  // namespace sluice::backend::vulkan
