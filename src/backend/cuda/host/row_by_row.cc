#include "backend/cuda/host/row_by_row.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

class RowByRow : public Executable {
 public:
  explicit RowByRow(std::unique_ptr<Executable> one) : one_(std::move(one)) {}

  Facts facts() const override {
    Facts facts = one_->facts();
    facts.steps_in_flight = facts.draft_rows = 1;
    return facts;
  }
  Ticket submit(const Step& step) override {
    constexpr int32_t kFirst[] = {0};
    constexpr auto kTop = static_cast<size_t>(kMaxTopK);
    const StepInput& input = step.input;
    CHECK(!step.timed || input.rows() == 1, "{} rows", input.rows());
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    const auto pages = static_cast<size_t>(input.pages_per_sequence);
    outputs_.assign(input.output_rows.size(), RowResult{});
    logits_.resize(std::max(logits_.size(), outputs_.size() * columns));
    top_.resize(std::max(top_.size(), outputs_.size() * kTop));
    size_t output = 0;
    for (size_t row = 0; row < input.tokens.size(); ++row) {
      const bool wanted =
          output < input.output_rows.size() && static_cast<size_t>(input.output_rows[output]) == row;
      const Want want = wanted ? step.want(static_cast<int64_t>(output)) : Want{};
      Step own{.timed = step.timed};
      own.input.tokens = input.tokens.subspan(row, 1), own.input.positions = input.positions.subspan(row, 1);
      own.input.sequences = kFirst, own.input.slots = input.slots.subspan(row, 1);
      own.input.page_tables =
          input.page_tables.subspan(static_cast<size_t>(input.sequences[row]) * pages, pages);
      own.input.pages_per_sequence = input.pages_per_sequence;
      own.wants = {&want, wanted ? size_t{1} : 0};
      if (wanted) own.input.output_rows = kFirst;
      const StepResult result = run_step(*one_, own);
      if (!wanted) continue;
      RowResult& kept = outputs_[output] = result.outputs[0];
      kept.logits = keep(kept.logits, std::span(logits_).subspan(output * columns, columns));
      kept.top = keep(kept.top, std::span(top_).subspan(output * kTop, kTop));
      ++output;
    }
    return {};
  }
  StepResult collect(Ticket) override { return {.outputs = outputs_}; }
  /// Of steps of one row.
  void fetch_times(StepTimes& times) override { one_->fetch_times(times); }
  void peek(TensorId id, int64_t rows, std::span<float> values) override { one_->peek(id, rows, values); }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    one_->poke(id, rows, values);
  }
  PageCopier* copier() override { return one_->copier(); }
  const Program& program() const override { return std::as_const(*one_).program(); }
  std::vector<BoundKernel> bound() const override { return one_->bound(); }
  std::vector<BoundKernel> bound_for(int64_t, int64_t context) const override {
    return one_->bound_for(1, context);
  }
  int64_t memory_bytes() const override { return one_->memory_bytes(); }

 private:
  template <typename T>
  static std::span<const T> keep(std::span<const T> given, std::span<T> room) {
    std::ranges::copy(given, room.begin());
    return room.first(given.size());
  }

  std::unique_ptr<Executable> one_;
  std::vector<RowResult> outputs_;
  std::vector<float> logits_;
  std::vector<Likely> top_;
};

}  // namespace

std::unique_ptr<Executable> run_row_by_row(std::unique_ptr<Executable> one) {
  return std::make_unique<RowByRow>(std::move(one));
}

}  // namespace sluice::backend::cuda
