// The memory plan: what it adds up to, the context that fits, and figures that no integer holds.
#include "engine/load_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/cpu_info.h"
#include "program/builder.h"

namespace sluice::engine {
namespace {

using program::CompileOptions;
using program::MemoryNeeds;
using program::Program;

/// A backend of which only the needs are asked.
class Needs : public program::Backend {
 public:
  std::string name() const override { return "needs"; }
  bool has(const Program&, const program::Op&) const override { return true; }
  program::Binding bind(const program::Source&, const program::CompileOptions&) const override { return {}; }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    return {1000, program::cache_bytes(program, options.cache_room()), 300 * options.max_rows};
  }
  std::unique_ptr<program::Executable> compile(const program::Source&,
                                               std::shared_ptr<const program::WeightSet>,
                                               const CompileOptions&) override {
    throw std::logic_error("a plan compiles nothing");
  }
  const program::Peaks& peaks() override { throw std::logic_error("a plan measures nothing"); }
  double measure_read_bandwidth() override { throw std::logic_error("a plan measures nothing"); }
};

constexpr int64_t kPage = 2 * 64 * 48 * 2;  // 2 layers, 64 rows, 48 columns, f16

class LoadPlanTest : public testing::Test {
 protected:
  LoadPlanTest() {
    program::Builder b(program_);
    b.cache(2, 48, quant::Type::F16);
    b.set_output(b.activation("logits", program::kOutputRows, 1, 10));
  }
  LoadPlan plan(int64_t wanted, int64_t available, int64_t model_context = 1000) const {
    return plan_load(Needs(), program_, {.max_rows = 2, .max_outputs = 1}, model_context, wanted, available);
  }
  static constexpr int64_t kFixed = 1000 + 600 + 10 * 8;  // weights, scratch, candidates

  Program program_;
};

TEST_F(LoadPlanTest, AddsUpItsItems) {
  const LoadPlan p = plan(100, 1 << 30);
  EXPECT_EQ(p.context, 100);
  EXPECT_EQ(p.needs.cache_bytes, 2 * kPage);
  EXPECT_EQ(p.total_bytes(), kFixed + 2 * kPage);
  EXPECT_TRUE(p.fits());
  EXPECT_EQ(p.fitting_context, 1000);
}

/// 96 numbers of eight bits and 32 halves under 3 scales: 176 bytes in place of 256.
TEST(LoadPlan, ACacheOfEightBitsHoldsMoreOfAContext) {
  const auto plan = [](quant::Type type, int64_t wanted) {
    Program program;
    program::Builder b(program);
    b.cache(2, 128, type, 32);
    b.set_output(b.activation("logits", program::kOutputRows, 1, 10));
    return plan_load(Needs(), program, {.max_rows = 2, .max_outputs = 1}, 1 << 20, wanted, 100'000'000);
  };
  EXPECT_EQ(plan(quant::Type::F16, 640).needs.cache_bytes, 10 * 2 * 64 * 256);
  EXPECT_EQ(plan(quant::Type::Q8_0, 640).needs.cache_bytes, 10 * 2 * 64 * 176);
  const double more = static_cast<double>(plan(quant::Type::Q8_0, 0).context) /
                      static_cast<double>(plan(quant::Type::F16, 0).context);
  EXPECT_NEAR(more, 256.0 / 176, 1e-3);
}

TEST_F(LoadPlanTest, ZeroTakesTheLargestContextThatFits) {
  EXPECT_EQ(plan(0, 1 << 30).context, 1000);
  for (int64_t pages = 1; pages <= 15; ++pages) {
    EXPECT_EQ(plan(0, kFixed + pages * kPage).context, pages * 64);
    EXPECT_EQ(plan(0, kFixed + pages * kPage + kPage - 1).context, pages * 64);
    EXPECT_TRUE(plan(0, kFixed + pages * kPage).fits());
  }
  EXPECT_EQ(plan(0, kFixed + 16 * kPage).context, 1000);
}

TEST_F(LoadPlanTest, SaysWhatWouldFitWhenTheWishDoesNot) {
  const LoadPlan p = plan(500, kFixed + 3 * kPage);
  EXPECT_FALSE(p.fits());
  EXPECT_EQ(p.context, 500);
  EXPECT_EQ(p.fitting_context, 192);
  const LoadPlan none = plan(0, kFixed + kPage - 1);
  EXPECT_FALSE(none.fits());
  EXPECT_EQ(none.fitting_context, 0);
  EXPECT_EQ(none.context, 64);
  EXPECT_EQ(plan(0, 100, 10).context, 10);
}

TEST_F(LoadPlanTest, UnknownMemoryHoldsEverything) {
  EXPECT_TRUE(plan(1000, kUnknownMemory).fits());
  EXPECT_EQ(plan(0, kUnknownMemory).context, 1000);
}

TEST_F(LoadPlanTest, AbsurdContextsSaturate) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t wanted : {int64_t{1} << 30, int64_t{1} << 62, kMost - 64}) {
    const LoadPlan p = plan(wanted, int64_t{1} << 34, int64_t{1} << 31);
    EXPECT_FALSE(p.fits());
    EXPECT_GE(p.total_bytes(), wanted);
    EXPECT_LT(p.fitting_context, int64_t{1} << 30);
  }
  EXPECT_EQ(plan(kMost - 64, 1).total_bytes(), kMost);
  EXPECT_EQ(plan(0, kUnknownMemory, int64_t{1} << 31).context, int64_t{1} << 30);
}

}  // namespace
}  // namespace sluice::engine
