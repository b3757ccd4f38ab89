// Steps whose kernels leave their times: the same results, times that can be, and at next to no cost.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "profile/statistics.h"
#include "profile/timeline.h"
#include "support/cuda.h"
#include "support/golden.h"

namespace sluice::test {
namespace {

using namespace program;

constexpr int32_t kPages = 16;

/// The bundled model, ready for steps of the first tokens of one sequence.
class Steps {
 public:
  Steps(Backend& cuda, int64_t rows)
      : model_(model::Model::load(source_path("models/fairy-tales.gguf"))),
        executable_(cuda.compile(model_.program, model_.weights, {rows, 1, kPages})),
        pool_(kPages),
        batch_(rows, 1, kPages) {
    std::vector<int32_t> table;
    EXPECT_TRUE(pool_.reserve(table, rows));
    batch_.set_pages(0, table);
    for (int64_t i = 0; i < rows; ++i)
      batch_.add(static_cast<int32_t>(i % 1000 + 3), static_cast<int32_t>(i), 0, i + 1 == rows);
  }

  /// Returns its nanoseconds.
  int64_t run(StepTimes* times = nullptr) {
    Step step = batch_.step();
    step.timed = times != nullptr;
    const int64_t begin = now_ns();
    const StepResult result = run_step(*executable_, step);
    const int64_t ns = now_ns() - begin;
    logits_.assign(result.outputs[0].logits.begin(), result.outputs[0].logits.end());
    if (times != nullptr) executable_->fetch_times(*times);
    return ns;
  }
  const std::vector<float>& logits() const { return logits_; }
  const Program& program() const { return executable_->program(); }
  const Executable& executable() const { return *executable_; }

 private:
  model::Model model_;
  std::unique_ptr<Executable> executable_;
  engine::KvPool pool_;
  engine::Batch batch_;
  std::vector<float> logits_;
};

class CudaTimed : public testing::TestWithParam<int> {};

TEST_P(CudaTimed, GivesTheSameBitsAndTimesThatCanBe) {
  CUDA_OR_SKIP(cuda);
  Steps steps(cuda, GetParam());
  steps.run();
  const std::vector<float> untimed = steps.logits();
  StepTimes times;
  for (int round = 0; round < 3; ++round) {  // captured, and twice more
    const int64_t before = now_ns();
    steps.run(&times);
    EXPECT_EQ(steps.logits(), untimed);
    ASSERT_EQ(times.workers, 1);
    ASSERT_EQ(times.parts.size(), steps.program().ops().size());
    EXPECT_GE(times.begin_ns, before);
    EXPECT_LE(times.end_ns, now_ns());
    int64_t ended = times.begin_ns;
    for (size_t i = 0; i < times.parts.size(); ++i) {
      // A kernel waits for its predecessor's end, which has left its time by then.
      EXPECT_GE(times.parts[i].begin_ns, ended) << i;
      EXPECT_GT(times.parts[i].end_ns, times.parts[i].begin_ns) << i;
      ended = times.parts[i].end_ns;
    }
    EXPECT_LE(ended, times.end_ns);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaTimed, testing::Values(1, 2, 7, 64, 512));

// The issue of a profile whose clocks change what they measure: 40 to 85 % once, with events between kernels.
// On whole models the cost is below 3 % (docs/performance.md); the bundled one has the shortest kernels of
// all.
TEST(CudaTimedStep, AddsUpAndCostsLittle) {
  CUDA_ALONE_OR_SKIP(cuda);
  Steps steps(cuda, 1);
  StepTimes times;
  std::vector<double> timed, untimed, sums;
  for (int i = 0; i < 100; ++i) {
    untimed.push_back(static_cast<double>(steps.run()));
    timed.push_back(static_cast<double>(steps.run(&times)));
    const profile::StepParts parts = profile::take_apart(times, times.parts.size());
    double sum = 0;
    for (const int64_t ns : parts.op_ns) sum += static_cast<double>(ns);
    for (const int64_t ns : parts.gap_ns) sum += static_cast<double>(ns);
    sums.push_back(sum);
  }
  EXPECT_NEAR(profile::median(sums) / profile::median(timed), 1, 0.02);
  EXPECT_LT(profile::median(timed) / profile::median(untimed), 1.08);
}

// A profile of a prompt must not name the kernels of one row.
TEST(CudaBound, KernelsAreThoseOfTheRowsAskedFor) {
  CUDA_OR_SKIP(cuda);
  const Steps steps(cuda, 64);
  const std::vector<BoundKernel> all = steps.executable().bound(), few = steps.executable().bound_for(1, 1),
                                 many = steps.executable().bound_for(64, 64);
  ASSERT_EQ(few.size(), all.size());
  ASSERT_EQ(many.size(), all.size());
  int others = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    // Of a range of rows both are told, and the smallest steps' first.
    EXPECT_EQ(all[i].name.substr(0, few[i].name.size()), few[i].name);
    EXPECT_EQ(many[i].name.find("; rows"), std::string::npos);
    others += many[i].name.substr(0, many[i].name.find(':')) != few[i].name.substr(0, few[i].name.find(':'));
  }
  EXPECT_GT(others, 0);
}

}  // namespace
}  // namespace sluice::test
