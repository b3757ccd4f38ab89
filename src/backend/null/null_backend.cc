#include "backend/null/null_backend.h"

#include <algorithm>
#include <map>

#include "program/op_info.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

/// The sizes of a step, counted: what is read of the cache is each sequence's longest context once.
StepShape shape_of(const StepInput& input) {
  StepShape shape{.rows = static_cast<double>(input.rows()),
                  .outputs = static_cast<double>(input.outputs()),
                  .context = 0,
                  .cache_rows = 0};
  std::map<int32_t, double> longest;
  for (size_t r = 0; r < input.positions.size(); ++r) {
    const double context = input.positions[r] + 1.0;
    shape.context += context / shape.rows;
    double& most = longest[input.sequences[r]];
    most = std::max(most, context);
  }
  for (const auto& [sequence, context] : longest) shape.cache_rows += context;
  shape.sequences = static_cast<double>(longest.size());
  return shape;
}

class NullExecutable : public Executable {
 public:
  NullExecutable(const Program& program, const Peaks& peaks)
      : program_(program),
        peaks_(peaks),
        logits_(
            static_cast<size_t>(program.output() == kNoTensor ? 0 : program[program.output()].columns())) {}

  /// The clock begins at 0, and every op ends when the device could have ended it.
  Ticket submit(const Step& step) override {
    outputs_.assign(step.input.output_rows.size(), RowResult{.logits = logits_});
    if (!step.timed) return {};
    const StepShape shape = shape_of(step.input);
    times_.workers = 1;
    times_.parts.resize(program_.ops().size());
    double seconds = 0;
    for (size_t i = 0; i < program_.ops().size(); ++i) {
      const Op& op = program_.ops()[i];
      const auto begin = static_cast<int64_t>(1e9 * seconds);
      seconds += peaks_.limit_seconds(info(op).cost(program_, op, shape));
      times_.parts[i] = {begin, static_cast<int64_t>(1e9 * seconds)};
    }
    times_.end_ns = static_cast<int64_t>(1e9 * seconds);
    return {};
  }
  StepResult collect(Ticket) override { return {.outputs = outputs_}; }
  void fetch_times(StepTimes& times) override { times = times_; }

  void peek(TensorId, int64_t, std::span<float> values) override { std::ranges::fill(values, 0.0f); }
  void poke(TensorId, int64_t, std::span<const float>) override {}
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override {
    return std::vector<BoundKernel>(program_.ops().size(), {"limit", "src/backend/null/null_backend.cc", 1});
  }
  int64_t memory_bytes() const override { return 0; }

 private:
  Program program_;
  Peaks peaks_;
  std::vector<float> logits_;  // zeros, of every output
  std::vector<RowResult> outputs_;
  StepTimes times_;
};

class NullBackend : public Backend {
 public:
  explicit NullBackend(const Peaks& peaks) : peaks_(peaks) {}
  std::string name() const override { return "null"; }
  bool has(const Program&, const Op&) const override { return true; }
  MemoryNeeds memory_needs(const Program&, const CompileOptions&) const override { return {}; }
  Binding bind(const Source& source, const CompileOptions&) const override {
    return {.program = source.program, .kernels = NullExecutable(source.program, peaks_).bound()};
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> /*none*/,
                                      const CompileOptions&) override {
    return std::make_unique<NullExecutable>(source.program, peaks_);
  }
  const Peaks& peaks() override { return peaks_; }
  double measure_read_bandwidth() override { return peaks_.bytes_per_second; }

 private:
  Peaks peaks_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(const Peaks& peaks) {
  return std::make_unique<NullBackend>(peaks);
}

}  // namespace sluice::backend
