#include "backend/cuda/host/batch_invariant.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cuda/host/bind.h"
#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Some rows of a step as one of their own. Page tables and states are the whole step's.
class SmallStep {
 public:
  void clear() { rows_ = outputs_ = 0; }
  bool is_full() const { return rows_ == kInvariantRows; }
  /// Adds row `row` of the step, which gives its output `output`; -1: it gives nothing.
  void add(const Step& step, size_t row, int64_t output) {
    const StepInput& input = step.input;
    const auto at = static_cast<size_t>(rows_);
    tokens_[at] = input.tokens[row], positions_[at] = input.positions[row];
    sequences_[at] = input.sequences[row], slots_[at] = input.slots[row];
    if (output >= 0) {
      const auto given = static_cast<size_t>(outputs_++);
      output_rows_[given] = static_cast<int32_t>(rows_), output_of_[given] = static_cast<size_t>(output);
      wants_[given] = step.want(output);
    }
    ++rows_;
  }
  Step step(const Step& whole, std::span<const StateSlots> states) const {
    const auto rows = static_cast<size_t>(rows_);
    Step step{.wants = {wants_.data(), static_cast<size_t>(outputs_)}, .timed = whole.timed};
    step.input.tokens = {tokens_.data(), rows}, step.input.positions = {positions_.data(), rows};
    step.input.sequences = {sequences_.data(), rows}, step.input.slots = {slots_.data(), rows};
    step.input.page_tables = whole.input.page_tables;
    step.input.pages_per_sequence = whole.input.pages_per_sequence;
    step.input.output_rows = {output_rows_.data(), static_cast<size_t>(outputs_)};
    step.input.states = states;
    return step;
  }
  int64_t rows() const { return rows_; }
  /// Which output of the whole step each of its own is.
  std::span<const size_t> outputs() const { return {output_of_.data(), static_cast<size_t>(outputs_)}; }

 private:
  using Ints = std::array<int32_t, kInvariantRows>;
  int64_t rows_ = 0, outputs_ = 0;
  Ints tokens_{}, positions_{}, sequences_{}, slots_{}, output_rows_{};
  std::array<Want, kInvariantRows> wants_{};
  std::array<size_t, kInvariantRows> output_of_{};
};

class BatchInvariant : public Executable {
 public:
  BatchInvariant(std::unique_ptr<Executable> inner, const CompileOptions& options)
      : inner_(std::move(inner)),
        context_buckets_(context_buckets(longest_context(options))),
        spare_(static_cast<int32_t>(options.state_slots)) {}

  Facts facts() const override {
    Facts facts = inner_->facts();
    facts.steps_in_flight = 1;
    facts.parts = false;
    return facts;
  }
  /// Sequences with short contexts come first, so that small steps are full.
  Ticket submit(const Step& step) override {
    const StepInput& input = step.input;
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    outputs_.assign(input.output_rows.size(), RowResult{});
    logits_.resize(std::max(logits_.size(), outputs_.size() * columns));
    top_.resize(std::max(top_.size(), outputs_.size() * static_cast<size_t>(kMaxTopK)));
    output_of_.assign(input.tokens.size(), -1);
    for (size_t i = 0; i < input.output_rows.size(); ++i)
      output_of_[static_cast<size_t>(input.output_rows[i])] = static_cast<int32_t>(i);
    states_.assign(input.states.begin(), input.states.end());
    for (const int64_t context : context_buckets_) {
      for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
        end = input.end_of_sequence(first);
        if (bucket(input, end - 1) == context) add(step, first, end);
      }
      run(step);
    }
    return {};
  }
  StepResult collect(Ticket) override { return {.outputs = outputs_}; }
  /// Of the rows that ran last.
  void fetch_times(StepTimes& times) override { inner_->fetch_times(times); }
  void peek(TensorId id, int64_t rows, std::span<float> values) override { inner_->peek(id, rows, values); }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    inner_->poke(id, rows, values);
  }
  PageCopier* copier() override { return inner_->copier(); }
  const Program& program() const override { return std::as_const(*inner_).program(); }
  std::vector<BoundKernel> bound() const override { return inner_->bound(); }
  std::vector<BoundKernel> bound_for(int64_t, int64_t context) const override {
    return inner_->bound_for(kInvariantRows, context);
  }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }

 private:
  int64_t bucket(const StepInput& input, int64_t row) const {
    return bucket_of(context_buckets_, 1 + input.positions[static_cast<size_t>(row)]);
  }
  /// Small steps of so many rows of a sequence, by themselves.
  int64_t steps_for(const StepInput& input, int64_t first, int64_t end) const {
    int64_t steps = 1;
    for (int64_t row = first + 1, rows = 1; row < end; ++row, ++rows) {
      if (rows < kInvariantRows && bucket(input, row) == bucket(input, row - 1)) continue;
      ++steps, rows = 0;
    }
    return steps;
  }
  /// Adds rows of one sequence, and runs what is full. With a state they are not parted, or have small
  /// steps of their own: each reads one slot and writes another one, the last one the whole step's.
  void add(const Step& step, int64_t first, int64_t end) {
    const StepInput& input = step.input;
    int64_t left = states_.empty() ? 1 : steps_for(input, first, end);
    if (left > 1 || (!states_.empty() && small_.rows() + end - first > kInvariantRows)) run(step);
    StateSlots* const state =
        left > 1 ? &states_[static_cast<size_t>(input.sequences[static_cast<size_t>(first)])] : nullptr;
    const int32_t to = state != nullptr ? state->to : 0;
    const auto write_next = [&] { state->to = --left % 2 == 0 ? to : spare_; };
    if (state != nullptr) write_next();
    for (int64_t row = first; row < end; ++row) {
      if (small_.is_full() || (small_.rows() > 0 && bucket(input, row) != bucket_)) {
        run(step);
        if (state != nullptr) state->from = state->to, write_next();
      }
      bucket_ = bucket(input, row);
      small_.add(step, static_cast<size_t>(row), output_of_[static_cast<size_t>(row)]);
    }
    if (state != nullptr) run(step);
  }
  /// Runs what is there of the small step, and empties it.
  void run(const Step& step) {
    if (small_.rows() == 0) return;
    const StepResult result = run_step(*inner_, small_.step(step, states_));
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    constexpr auto kTop = static_cast<size_t>(kMaxTopK);
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      const size_t output = small_.outputs()[i];
      RowResult& kept = outputs_[output] = result.outputs[i];
      kept.logits = keep(kept.logits, std::span(logits_).subspan(output * columns, columns));
      kept.top = keep(kept.top, std::span(top_).subspan(output * kTop, kTop));
    }
    small_.clear();
  }
  template <typename T>
  static std::span<const T> keep(std::span<const T> given, std::span<T> room) {
    std::ranges::copy(given, room.begin());
    return room.first(given.size());
  }

  std::unique_ptr<Executable> inner_;
  std::vector<int64_t> context_buckets_;
  int32_t spare_;  // slot of states between small steps
  SmallStep small_;
  int64_t bucket_ = 0;              // the small step's
  std::vector<int32_t> output_of_;  // of a row; -1: it is none
  std::vector<StateSlots> states_;
  std::vector<RowResult> outputs_;
  std::vector<float> logits_;
  std::vector<Likely> top_;
};

}  // namespace

CompileOptions options_inside(CompileOptions options) {
  options.max_rows = options.max_outputs = kInvariantRows;
  ++options.state_slots;
  return options;
}

std::unique_ptr<Executable> run_batch_invariant(std::unique_ptr<Executable> inner,
                                                const CompileOptions& options) {
  return std::make_unique<BatchInvariant>(std::move(inner), options);
}

}  // namespace sluice::backend::cuda
