#include "backend/cuda/row_by_row.h"

#include <utility>

#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

class RowByRow : public Executable {
 public:
  explicit RowByRow(std::unique_ptr<Executable> one) : one_(std::move(one)) {}

  void run(const StepInput& input, StepOutput& output) override {
    constexpr int32_t kFirst[] = {0};
    const auto columns = static_cast<size_t>(program()[program().output()].columns());
    const auto pages = static_cast<size_t>(input.pages_per_sequence);
    size_t outputs = 0;
    for (size_t row = 0; row < input.tokens.size(); ++row) {
      const bool wanted =
          outputs < input.output_rows.size() && static_cast<size_t>(input.output_rows[outputs]) == row;
      StepInput step;
      step.tokens = input.tokens.subspan(row, 1), step.positions = input.positions.subspan(row, 1);
      step.sequences = kFirst, step.slots = input.slots.subspan(row, 1);
      step.page_tables = input.page_tables.subspan(static_cast<size_t>(input.sequences[row]) * pages, pages);
      step.pages_per_sequence = input.pages_per_sequence;
      if (wanted) step.output_rows = kFirst;
      StepOutput own;
      if (wanted && output.likeliest.empty()) {
        own.logits = output.logits.subspan(outputs * columns, columns);
      } else if (wanted) {
        own.likeliest = output.likeliest.subspan(outputs * kLikeliest, kLikeliest);
      }
      one_->run(step, own);
      outputs += wanted ? 1 : 0;
    }
  }
  bool finds_likeliest() const override { return one_->finds_likeliest(); }
  /// Of steps of one row.
  void run_timed(const StepInput& input, StepOutput& output, StepTimes& times) override {
    CHECK(input.rows() == 1, "{} rows", input.rows());
    one_->run_timed(input, output, times);
  }
  void fetch_times(StepTimes& times) override { one_->fetch_times(times); }
  void peek(TensorId id, int64_t rows, std::span<float> values) override { one_->peek(id, rows, values); }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    one_->poke(id, rows, values);
  }
  const Program& program() const override { return std::as_const(*one_).program(); }
  std::vector<BoundKernel> bound() const override { return one_->bound(); }
  std::vector<BoundKernel> bound_for(int64_t, int64_t context) const override {
    return one_->bound_for(1, context);
  }
  int64_t memory_bytes() const override { return one_->memory_bytes(); }

 private:
  std::unique_ptr<Executable> one_;
};

}  // namespace

std::unique_ptr<Executable> run_row_by_row(std::unique_ptr<Executable> one) {
  return std::make_unique<RowByRow>(std::move(one));
}

}  // namespace sluice::backend::cuda
