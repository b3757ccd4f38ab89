// An executable that takes steps ahead, as a device does, over one that does not. The step that begins may
// run at once, or only when its end is asked for: a device is somewhere between. Some of its draws are wrong,
// as rounding may make a device's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "program/backend.h"
#include "support/exact_draw.h"

namespace sluice::test {

class AheadExecutable : public program::Executable {
 public:
  AheadExecutable(std::unique_ptr<program::Executable> of, bool eager) : of_(std::move(of)), eager_(eager) {}
  ~AheadExecutable() override { EXPECT_TRUE(begun_.empty()) << "nobody waited for the last step"; }

  bool finds_likeliest() const override { return true; }
  bool runs_ahead() const override { return true; }
  void run(const program::StepInput& input, program::StepOutput& output) override {
    EXPECT_TRUE(begun_.empty());
    if (!output.logits.empty() || input.outputs() == 0) return of_->run(input, output);
    begin(input);
    std::vector<int32_t> drawn(static_cast<size_t>(input.outputs()));
    end(output.likeliest, drawn);
  }
  void begin(const program::StepInput& input) override {
    ASSERT_LT(begun_.size(), 2u);
    ahead += !begun_.empty();
    ++steps;
    ASSERT_EQ(std::ssize(input.draws), input.outputs());
    begun_.push_back(std::make_unique<Step>(input));
    if (eager_) run_step(*begun_.back());
  }
  void end(std::span<program::Likely> likeliest, std::span<int32_t> drawn) override {
    ASSERT_FALSE(begun_.empty());
    Step& step = *begun_.front();
    if (!eager_) run_step(step);
    ASSERT_GE(likeliest.size(), step.likeliest.size());
    ASSERT_GE(drawn.size(), step.drawn.size());
    std::ranges::copy(step.likeliest, likeliest.begin());
    std::ranges::copy(step.drawn, drawn.begin());
    begun_.pop_front();
  }

  void run_timed(const program::StepInput& input, program::StepOutput& output,
                 program::StepTimes& times) override {
    of_->run_timed(input, output, times);
  }
  void peek(program::TensorId id, int64_t rows, std::span<float> values) override {
    of_->peek(id, rows, values);
  }
  void poke(program::TensorId id, int64_t rows, std::span<const float> values) override {
    of_->poke(id, rows, values);
  }
  const program::Program& program() const override { return of_->program(); }
  std::vector<program::BoundKernel> bound() const override { return of_->bound(); }
  int64_t memory_bytes() const override { return of_->memory_bytes(); }

  int64_t steps = 0, ahead = 0;  ///< that began, and those of them that did while another ran
  int64_t draws = 0;

 private:
  /// A step with its own copy of all that its input points to.
  struct Step {
    std::vector<int32_t> tokens, positions, sequences, slots, tables, output_rows;
    program::StepInput input;
    std::vector<program::Draw> draws;
    std::vector<program::Likely> likeliest;
    std::vector<int32_t> drawn;

    explicit Step(const program::StepInput& from)
        : tokens(from.tokens.begin(), from.tokens.end()),
          positions(from.positions.begin(), from.positions.end()),
          sequences(from.sequences.begin(), from.sequences.end()),
          slots(from.slots.begin(), from.slots.end()),
          tables(from.page_tables.begin(), from.page_tables.end()),
          output_rows(from.output_rows.begin(), from.output_rows.end()),
          input{tokens, positions, sequences, slots, tables, from.pages_per_sequence, output_rows},
          draws(from.draws.begin(), from.draws.end()) {}
  };

  void run_step(Step& step) {
    for (int32_t& token : step.tokens)
      if (token < 0) token = drawn_.at(static_cast<size_t>(-1 - token));
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    logits_.resize(step.output_rows.size() * columns);
    program::StepOutput output{logits_};
    of_->run(step.input, output);
    for (size_t i = 0; i < step.output_rows.size(); ++i) {
      row_.clear();
      for (size_t c = 0; c < columns; ++c)
        row_.push_back({logits_[i * columns + c], static_cast<int32_t>(c)});
      std::ranges::stable_sort(row_, std::ranges::greater(), &program::Likely::logit);
      row_.resize(static_cast<size_t>(program::kLikeliest));
      step.likeliest.insert(step.likeliest.end(), row_.begin(), row_.end());
      step.drawn.push_back(draw_exactly(row_, step.draws.at(i)).token);
      if (++draws % kWrong == 0) step.drawn.back() = row_[1].token;
    }
    drawn_ = step.drawn;
  }

  static constexpr int64_t kWrong = 37;  // now and then a draw is another than the host's

  std::unique_ptr<program::Executable> of_;
  bool eager_;
  std::deque<std::unique_ptr<Step>> begun_;
  std::vector<int32_t> drawn_;
  std::vector<float> logits_;
  std::vector<program::Likely> row_;
};

}  // namespace sluice::test
