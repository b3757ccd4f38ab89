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

#include "base/error.h"
#include "program/executable.h"
#include "support/exact_draw.h"

namespace sluice::test {

class AheadExecutable : public program::Executable {
 public:
  AheadExecutable(std::unique_ptr<program::Executable> of, bool eager) : of_(std::move(of)), eager_(eager) {}
  ~AheadExecutable() override { EXPECT_TRUE(begun_.empty()) << "nobody waited for the last step"; }

  program::Facts facts() const override {
    return {.steps_in_flight = 2, .top = true, .drawn = true, .draft_rows = of_->facts().draft_rows};
  }
  program::Ticket submit(const program::Step& step) override {
    EXPECT_LT(begun_.size(), 2u);
    ahead += !begun_.empty();
    for (const auto& before : begun_)
      EXPECT_TRUE(std::ranges::none_of(before->wants, &program::Want::logits)) << "they are lost";
    begun_.push_back(std::make_unique<Copy>(step, program::Ticket{static_cast<uint64_t>(++steps)}));
    if (eager_) run(*begun_.back());
    return begun_.back()->ticket;
  }
  program::StepResult collect(program::Ticket ticket) override {
    if (begun_.empty() || begun_.front()->ticket != ticket) throw Error("this step is not the next");
    collected_ = std::move(begun_.front());
    begun_.pop_front();
    if (!collected_->ran) run(*collected_);
    return {.outputs = collected_->rows};
  }

  void peek(program::TensorId id, int64_t rows, std::span<float> values) override {
    for (const auto& step : begun_)  // as steps leave it that were submitted
      if (!step->ran) run(*step);
    of_->peek(id, rows, values);
  }
  void poke(program::TensorId id, int64_t rows, std::span<const float> values) override {
    of_->poke(id, rows, values);
  }
  const program::Program& program() const override { return of_->program(); }
  std::vector<program::BoundKernel> bound() const override { return of_->bound(); }
  int64_t memory_bytes() const override { return of_->memory_bytes(); }

  int64_t steps = 0, ahead = 0;  ///< that were submitted, and those of them that were while another ran
  int64_t draws = 0;

 private:
  /// A step with its own copy of all that its input points to, and its results.
  struct Copy {
    std::vector<int32_t> tokens, positions, sequences, slots, tables, output_rows;
    std::vector<program::StateSlots> states;
    program::StepInput input;
    std::vector<program::Want> wants;
    program::Ticket ticket;
    std::vector<program::RowResult> rows;
    std::vector<float> logits;
    std::vector<program::Likely> top;
    bool ran = false;

    Copy(const program::Step& step, program::Ticket given)
        : tokens(step.input.tokens.begin(), step.input.tokens.end()),
          positions(step.input.positions.begin(), step.input.positions.end()),
          sequences(step.input.sequences.begin(), step.input.sequences.end()),
          slots(step.input.slots.begin(), step.input.slots.end()),
          tables(step.input.page_tables.begin(), step.input.page_tables.end()),
          output_rows(step.input.output_rows.begin(), step.input.output_rows.end()),
          states(step.input.states.begin(), step.input.states.end()),
          input{tokens,      positions, sequences, slots, tables, step.input.pages_per_sequence,
                output_rows, states},
          ticket(given) {
      for (int64_t i = 0; i < step.input.outputs(); ++i) wants.push_back(step.want(i));
    }
  };

  void run(Copy& step) {
    step.ran = true;
    for (int32_t& token : step.tokens)
      if (token < 0) token = drawn_.at(static_cast<size_t>(-1 - token));
    drawn_.clear();
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    const size_t count = step.output_rows.size();
    constexpr auto kTop = static_cast<size_t>(program::kMaxTopK);
    step.logits.resize(count * columns);
    run_logits(*of_, step.input, step.logits);
    step.rows.resize(count);
    step.top.reserve(count * kTop);
    for (size_t i = 0; i < count; ++i) {
      const auto logits = std::span(step.logits).subspan(i * columns, columns);
      row_.clear();
      for (size_t c = 0; c < columns; ++c) row_.push_back({logits[c], static_cast<int32_t>(c)});
      std::partial_sort(row_.begin(), row_.begin() + kTop, row_.end(), [](const auto& a, const auto& b) {
        return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
      });
      row_.resize(kTop);
      step.top.insert(step.top.end(), row_.begin(), row_.end());
      drawn_.push_back(draw_exactly(row_, step.wants[i].draw).token);
      if (++draws % kWrong == 0) drawn_.back() = row_[1].token;
      if (step.wants[i].logits) {
        step.rows[i].logits = logits;
      } else {
        step.rows[i].top = std::span(step.top).subspan(i * kTop, kTop);
        step.rows[i].drawn = drawn_.back();
      }
    }
  }

  static constexpr int64_t kWrong = 37;  // now and then a draw is another than the host's

  std::unique_ptr<program::Executable> of_;
  bool eager_;
  std::deque<std::unique_ptr<Copy>> begun_;
  std::unique_ptr<Copy> collected_;
  std::vector<int32_t> drawn_;  // by the step that ran last
  std::vector<program::Likely> row_;
};

}  // namespace sluice::test
