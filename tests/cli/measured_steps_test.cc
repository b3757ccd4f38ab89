// Readings of memory that take turns with steps: how much they read, and when.
#include "cli/measured_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace sluice::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Remembers what it was asked to read.
class Probe : public program::BandwidthProbe {
 public:
  explicit Probe(std::vector<int64_t>& readings) : readings_(readings) {}
  void read(int64_t bytes) override { readings_.push_back(bytes); }
  double bytes_per_second() const override { return readings_.empty() ? 0 : 5e9; }
  int64_t memory_bytes() const override { return 1000; }

 private:
  std::vector<int64_t>& readings_;
};

/// A backend of which only a probe is asked.
class Probed : public program::Backend {
 public:
  std::string name() const override { return "probed"; }
  bool has(const program::Program&, const program::Op&) const override { return true; }
  program::Binding bind(const program::Source&, const program::CompileOptions&) const override { return {}; }
  program::MemoryNeeds memory_needs(const program::Program&, const program::CompileOptions&) const override {
    return {};
  }
  std::unique_ptr<program::Executable> compile(const program::Source&,
                                               std::shared_ptr<const program::WeightSet>,
                                               const program::CompileOptions&) override {
    throw std::logic_error("nothing is compiled");
  }
  const program::Peaks& peaks() override { throw std::logic_error("nothing is measured"); }
  double measure_read_bandwidth() override { throw std::logic_error("nothing is measured"); }
  std::unique_ptr<program::BandwidthProbe> bandwidth_probe() override {
    return probed ? std::make_unique<Probe>(readings) : nullptr;
  }

  bool probed = true;
  std::vector<int64_t> readings;
};

TEST(ReadTurns, AnEighthOfWhatTheStepsRead) {
  Probed backend;
  ReadTurns turns(backend, 1.6e9);
  EXPECT_EQ(turns.bytes_per_second(), 0);
  for (int i = 0; i < 3; ++i) turns.after_step();
  EXPECT_THAT(backend.readings, ElementsAre(200'000'000, 200'000'000, 200'000'000));
  EXPECT_EQ(turns.bytes_per_second(), 5e9);
  EXPECT_EQ(turns.memory_bytes(), 1000);
}

/// A short reading tells more of its begin and end than of the memory.
TEST(ReadTurns, SmallStepsHaveOneTogether) {
  Probed backend;
  ReadTurns turns(backend, 300e6);
  for (int i = 0; i < 30; ++i) turns.after_step();
  EXPECT_EQ(backend.readings.size(), 10u);
  EXPECT_NEAR(std::accumulate(backend.readings.begin(), backend.readings.end(), 0.0), 30 * 300e6 / 8, 1e3);
}

TEST(ReadTurns, LeaveAloneWhatACacheMayHold) {
  Probed backend;
  ReadTurns turns(backend, 10e6);
  for (int i = 0; i < 1000; ++i) turns.after_step();
  EXPECT_THAT(backend.readings, IsEmpty());
  EXPECT_EQ(turns.bytes_per_second(), 0);
  EXPECT_EQ(turns.memory_bytes(), 0);
}

TEST(ReadTurns, NoneOfABackendWithoutAProbe) {
  Probed backend;
  backend.probed = false;
  ReadTurns turns(backend, 1.6e9);
  turns.after_step();
  EXPECT_EQ(turns.bytes_per_second(), 0);
}

}  // namespace
}  // namespace sluice::cli
