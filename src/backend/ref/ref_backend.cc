#include "backend/ref/ref_backend.h"

#include <algorithm>

#include "base/clock.h"
#include "program/derived.h"
#include "program/op_info.h"
#include "program/places.h"
#include "program/ref_memory.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

BoundKernel reference_of(const Op& op) {
  return {"reference", std::string("src/program/ops/") + info(op).name + ".cc", 1};
}

class RefExecutable : public Executable {
 public:
  RefExecutable(Program program, const WeightBytes& weights, const CompileOptions& options, bool halves)
      : program_(std::move(program)), weights_(weights), memory_(program_, weights_, options, halves) {
    // Expansion added tensors, all of them activations: they have no bytes.
    weights_.resize(program_.tensors().size());
    parts_ = parts(program_);
    times_.workers = 1;
    times_.parts.resize(program_.ops().size());
    outputs_.reserve(static_cast<size_t>(options.max_outputs));
  }

  Facts facts() const override {
    return {.hidden = hidden_ != kNoTensor, .parts = true, .hidden_rows = true};
  }
  Ticket submit(const Step& step) override {
    times_.begin_ns = now_ns();
    int64_t begin = times_.begin_ns;
    for (size_t i = 0; i < program_.ops().size(); ++i) {
      const Op& op = program_.ops()[i];
      info(op).reference(memory_, op, step.input);
      times_.parts[i] = {begin, now_ns()};
      begin = times_.parts[i].end_ns;
    }
    times_.end_ns = begin;
    outputs_.resize(program_.output() != kNoTensor ? step.input.output_rows.size() : 0);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      outputs_[i].logits = {memory_.row(program_.output(), row),
                            static_cast<size_t>(program_[program_.output()].columns())};
      if (hidden_ != kNoTensor)
        outputs_[i].hidden = {memory_.row(hidden_, row), static_cast<size_t>(program_[hidden_].columns())};
    }
    return {};
  }
  StepResult collect(Ticket) override { return {.outputs = outputs_}; }
  void run_part(const Step& step, size_t part) override {
    for (int64_t i = parts_[part].first; i < parts_[part].last; ++i) {
      const Op& op = program_.ops()[static_cast<size_t>(i)];
      info(op).reference(memory_, op, step.input);
    }
  }
  void fetch_times(StepTimes& times) override { times = times_; }

  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    size_t next = 0;
    each_element(id, rows, [&](auto& element) { values[next++] = static_cast<float>(element); });
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    size_t next = 0;
    each_element(id, rows, [&](auto& element) {
      element = static_cast<std::decay_t<decltype(element)>>(values[next++]);
    });
  }

  PageCopier* copier() override { return &copier_; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override {
    std::vector<BoundKernel> list;
    for (const Op& op : program_.ops()) list.push_back(reference_of(op));
    return list;
  }
  int64_t memory_bytes() const override { return memory_.bytes(); }

 private:
  template <typename F>
  void each_element(TensorId id, int64_t rows, F visit) {
    const Tensor& tensor = program_[id];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < tensor.heads(); ++h) {
        for (int64_t c = 0; c < tensor.columns(); ++c) {
          if (tensor.type == quant::Type::I32) {
            visit(memory_.int_row(id, r, h)[c]);
          } else {
            visit(memory_.row(id, r, h)[c]);
          }
        }
      }
    }
  }

  /// Of a paged cache a layer's rows lie side by side, of a state all of a slot.
  void pieces(Kept what, int32_t index, const HostCopier::Visit& visit) {
    for (const TensorId id : program_.caches()) {
      const auto& [layers, rows, columns] = program_[id].shape;
      for (int64_t layer = 0; layer < layers; ++layer) {
        if (what == Kept::Page && program_[id].kind == Kind::Cache) {
          float* const first = memory_.cache_row(id, layer, int64_t{index} * kPageRows);
          visit(std::as_writable_bytes(std::span(first, static_cast<size_t>(kPageRows * columns))));
        } else if (what == Kept::State && program_[id].kind == Kind::State) {
          float* const first = memory_.state_row(id, layer, index, 0);
          visit(std::as_writable_bytes(std::span(first, static_cast<size_t>(rows * columns))));
        }
      }
    }
  }

  Program program_;
  WeightBytes weights_;
  RefMemory memory_;
  HostCopier copier_{"ref: " + cache_shapes(program_), [this](auto... of) { pieces(of...); }};
  TensorId hidden_ = hidden_states(program_);
  std::vector<Range> parts_;
  StepTimes times_;
  std::vector<RowResult> outputs_;
};

class RefBackend : public Backend {
 public:
  explicit RefBackend(bool halves) : halves_(halves) {}
  std::string name() const override { return "ref"; }
  Facts facts() const override { return {.parts = true, .invariant_parts = true, .hidden_rows = true}; }
  bool has(const Program&, const Op& op) const override { return info(op).reference != nullptr; }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    return RefMemory::needs(legal(program), options);
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    Binding binding{.program = legal(source.program), .needs = memory_needs(source.program, options)};
    for (const Op& op : binding.program.ops()) binding.kernels.push_back(reference_of(op));
    binding.weights = weights_in_file(binding.program);
    return binding;
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> /*mapped*/,
                                      const CompileOptions& options) override {
    return std::make_unique<RefExecutable>(legal(source.program), source.weights, options, halves_);
  }

 private:
  Program legal(const Program& program) const {
    return legalize(program, name(), [this](const Program& p, const Op& op) { return has(p, op); });
  }
  /// Loops made to be right have no peaks that they could be measured by.
  const Peaks& peaks() override { return peaks_; }
  double measure_read_bandwidth() override { return 0; }

  const bool halves_;
  Peaks peaks_;
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend(bool halves) { return std::make_unique<RefBackend>(halves); }

}  // namespace sluice::backend
