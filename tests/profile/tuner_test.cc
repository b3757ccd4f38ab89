// The tuner against a device whose times are known: it finds what is faster, and only that.
#include "profile/tuner.h"

#include <gtest/gtest.h>

#include "program/builder.h"

namespace sluice::profile {
namespace {

using namespace program;

const Variants kTile{"fake.tile", 1, {1, 2, 4}}, kAhead{"fake.ahead", 64, {64, 128}};

/// Every op of a step takes as long as its device's values make it.
class FakeExecutable : public Executable {
 public:
  FakeExecutable(const Program& program, int64_t op_ns) : program_(program), op_ns_(op_ns) {}
  Ticket submit(const Step&) override { return {}; }
  StepResult collect(Ticket) override { return {}; }
  void fetch_times(StepTimes& times) override {
    times.workers = 1;
    times.begin_ns = 0;
    times.parts.clear();
    for (size_t i = 0; i < program_.ops().size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      times.parts.push_back({at * op_ns_, (at + 1) * op_ns_});
    }
    times.end_ns = times.parts.back().end_ns;
  }
  void peek(TensorId, int64_t, std::span<float>) override {}
  void poke(TensorId, int64_t, std::span<const float>) override {}
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return std::vector<BoundKernel>(program_.ops().size()); }
  int64_t memory_bytes() const override { return 0; }

 private:
  Program program_;
  int64_t op_ns_;
};

class FakeBackend : public Backend {
 public:
  explicit FakeBackend(const Tuning& tuning) : tuning_(tuning) {}
  std::string name() const override { return "fake"; }
  bool has(const Program&, const Op&) const override { return true; }
  Binding bind(const Source&, const CompileOptions&) const override { return {}; }
  MemoryNeeds memory_needs(const Program&, const CompileOptions&) const override { return {}; }
  std::vector<Variants> variants(const Program&, const Op& op) const override {
    if (std::holds_alternative<Matmul>(op.args)) return {kTile, kAhead};
    return {};
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> /*mapped*/,
                                      const CompileOptions&) override {
    const int64_t tile = tuned(tuning_, kTile), ahead = tuned(tuning_, kAhead);
    // Two rows a tile are 20 % faster; looking further ahead is 1 % faster, which is not worth a word.
    return std::make_unique<FakeExecutable>(source.program, (tile == 2   ? 8000
                                                             : tile == 4 ? 12000
                                                                         : 10000) -
                                                                (ahead == 128 ? 100 : 0));
  }
  const Peaks& peaks() override { return peaks_; }
  double measure_read_bandwidth() override { return 0; }

 private:
  Tuning tuning_;
  Peaks peaks_;
};

TEST(Tuner, FindsWhatIsFasterAndOnlyThat) {
  Program program;
  Builder b(program);
  const TensorId x = b.activation("x", kStepRows, 1, 64);
  b.matmul(x, b.weight("a", quant::Type::F32, 1, 32, 64));
  b.rms_norm(x, b.weight("norm", quant::Type::F32, 1, 1, 64), 1e-5f);
  const WeightBytes weights(program.tensors().size());
  std::vector<TuneCase> cases;
  for (const Op& op : program.ops())
    cases.push_back({&program, &op, 3, 1, [&]() -> const WeightBytes& { return weights; }});
  int told = 0;
  const auto make = [](const Tuning& tuning) { return std::make_unique<FakeBackend>(tuning); };
  const std::vector<Choice> choices =
      tune(make, cases, {.rotate_bytes = 1e5, .seconds = 0}, [&](const std::string&) { ++told; });
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(choices[0].variants.key, "fake.tile");
  EXPECT_EQ(choices[0].ops, 1);
  EXPECT_EQ(choices[0].best, 2);
  EXPECT_NEAR(choices[0].us_of(1), 30.0, 1e-9);  // three calls of 10 us
  EXPECT_NEAR(choices[0].gain(), 0.2, 1e-9);
  EXPECT_EQ(choices[1].best, 64);
  EXPECT_EQ(choices[1].gain(), 0);
}

TEST(Tuning, OnlyOfferedValuesAreTaken) {
  EXPECT_EQ(tuned({}, kTile), 1);
  EXPECT_EQ(tuned({{"fake.tile", 4}}, kTile), 4);
  EXPECT_EQ(tuned({{"fake.tile", 3}}, kTile), 1);
  EXPECT_EQ(tuned({{"fake.tile", int64_t{1} << 62}}, kTile), 1);
  EXPECT_EQ(tuned({{"fake.ahead", 128}}, kTile), 1);
}

}  // namespace
}  // namespace sluice::profile
