// Executables over another one that keep the contract of stepping (program/executable.h) as plainly, or as
// fully, as it may be kept.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "program/derived.h"
#include "program/executable.h"

namespace sluice::test {

class WrappedExecutable : public program::Executable {
 public:
  explicit WrappedExecutable(std::unique_ptr<program::Executable> of) : of_(std::move(of)) {}
  void peek(program::TensorId id, int64_t rows, std::span<float> values) override {
    of_->peek(id, rows, values);
  }
  void poke(program::TensorId id, int64_t rows, std::span<const float> values) override {
    of_->poke(id, rows, values);
  }
  program::PageCopier* copier() override { return of_->copier(); }
  const program::Program& program() const override { return of_->program(); }
  std::vector<program::BoundKernel> bound() const override { return of_->bound(); }
  int64_t memory_bytes() const override { return of_->memory_bytes(); }

 protected:
  std::unique_ptr<program::Executable> of_;
};

/// The obligatory alone: one step at a time gives the logits of all its outputs, which last until the next
/// submit() or collect() and not a moment longer. It neither stops nor pauses, and has no times.
class MinimalExecutable : public WrappedExecutable {
 public:
  using WrappedExecutable::WrappedExecutable;
  program::Ticket submit(const program::Step& step) override {
    EXPECT_EQ(step.turn, program::Turn::Whole);
    EXPECT_FALSE(in_flight_);
    std::ranges::fill(logits_, std::numeric_limits<float>::quiet_NaN());
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    const auto count = static_cast<size_t>(step.input.outputs());
    logits_.resize(count * columns);
    run_logits(*of_, step.input, logits_);
    rows_.assign(count, {});
    for (size_t i = 0; i < count; ++i) rows_[i].logits = std::span(logits_).subspan(i * columns, columns);
    in_flight_ = true;
    return program::Ticket{++ticket_};
  }
  program::StepResult collect(program::Ticket ticket) override {
    EXPECT_TRUE(std::exchange(in_flight_, false));
    EXPECT_EQ(ticket, program::Ticket{ticket_});
    return {.outputs = rows_};
  }

 private:
  bool in_flight_ = false;
  uint64_t ticket_ = 0;
  std::vector<float> logits_;
  std::vector<program::RowResult> rows_;
};

/// Gives what is wanted of every output and nothing else; of drafts, how many are right.
class FullExecutable : public WrappedExecutable {
 public:
  using WrappedExecutable::WrappedExecutable;
  program::Facts facts() const override {
    program::Facts facts = of_->facts();
    facts.top = facts.drawn = facts.verified = true;
    return facts;
  }
  program::Ticket submit(const program::Step& step) override {
    const program::Ticket ticket = of_->submit(step);
    result_ = derived_.complete(step, of_->collect(ticket));
    rows_.assign(result_.outputs.begin(), result_.outputs.end());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const program::Want want = step.want(static_cast<int64_t>(i));
      if (!want.logits) rows_[i].logits = {};
      if (!want.top) rows_[i].top = {};
      EXPECT_TRUE(want.drafts == 0 || rows_[i].accepted >= 0);
    }
    result_.outputs = rows_;
    return ticket;
  }
  program::StepResult collect(program::Ticket) override { return result_; }

 private:
  program::Derived derived_;
  program::StepResult result_;
  std::vector<program::RowResult> rows_;
};

}  // namespace sluice::test
