// The lockstep of two backends: right ones agree, and a wrong kernel is found by its name and element.
#include "engine/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/half.h"
#include "model/model.h"
#include "program/op_info.h"
#include "program/tolerance.h"
#include "support/golden.h"

namespace sluice::engine {
namespace {

using namespace program;

/// Another executable, but one element of one tensor comes out wrong.
class Spoilt : public Executable {
 public:
  Spoilt(std::unique_ptr<Executable> right, TensorId tensor, size_t element, float value)
      : right_(std::move(right)), tensor_(tensor), element_(element), value_(value) {}
  Ticket submit(const Step& step) override { return right_->submit(step); }
  StepResult collect(Ticket ticket) override { return right_->collect(ticket); }
  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    right_->peek(id, rows, values);
    if (id == tensor_) values[element_] = value_;
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    right_->poke(id, rows, values);
  }
  const Program& program() const override { return right_->program(); }
  std::vector<BoundKernel> bound() const override { return {{"spoilt", "", 0}}; }
  int64_t memory_bytes() const override { return right_->memory_bytes(); }

 private:
  std::unique_ptr<Executable> right_;
  TensorId tensor_;
  size_t element_;
  float value_;
};

/// The CPU backend with a wrong kernel for one op of one layer; a fused op that it lacks it then has.
class WrongBackend : public Backend {
 public:
  WrongBackend(std::string op, float value) : op_(std::move(op)), value_(value) {}
  std::string name() const override { return "wrong"; }
  bool has(const Program& program, const Op& op) const override {
    return program.op_name(op) == op_ || cpu_->has(program, op);
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    return cpu_->bind(source, options);
  }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    return cpu_->memory_needs(program, options);
  }
  double tolerance(const Program& program) const override { return cpu_->tolerance(program); }
  const Peaks& peaks() override { return cpu_->peaks(); }
  double measure_read_bandwidth() override { return cpu_->measure_read_bandwidth(); }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    return cpu_->load(sources, progress);
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    const Program& program = source.program;
    auto right = cpu_->compile(source, std::move(weights), options);
    const Op& last = program.ops().back();
    if (program.op_name(last) != op_) return right;
    TensorId result = kNoTensor;
    info(last).operands(last, [&](const char*, TensorId id, bool written) {
      if (written) result = id;
    });
    return std::make_unique<Spoilt>(std::move(right), result, 1, value_);
  }

 private:
  std::unique_ptr<Backend> cpu_ = backend::make_cpu_backend({.threads = 2});
  std::string op_;
  float value_;
};

/// The reference, but heads' products get their inputs as halves, and come out `factor` times too large.
class HalvesExecutable : public Executable {
 public:
  HalvesExecutable(std::unique_ptr<Executable> right, float factor)
      : right_(std::move(right)), factor_(factor) {}
  Ticket submit(const Step& step) override { return right_->submit(step); }
  StepResult collect(Ticket ticket) override { return right_->collect(ticket); }
  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    right_->peek(id, rows, values);
    for (float& value : values) value *= factor_;
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    std::vector<float> halves(values.begin(), values.end());
    for (float& value : halves) value = f16_to_f32(f32_to_f16(value));
    right_->poke(id, rows, halves);
  }
  const Program& program() const override { return right_->program(); }
  std::vector<BoundKernel> bound() const override { return right_->bound(); }
  std::vector<BoundKernel> bound_for(int64_t rows, int64_t) const override {
    return {{fmt::format("halves of {} rows", rows), "", 0}};
  }
  int64_t memory_bytes() const override { return right_->memory_bytes(); }

 private:
  std::unique_ptr<Executable> right_;
  float factor_;
};

class HalvesBackend : public Backend {
 public:
  explicit HalvesBackend(float factor) : factor_(factor) {}
  std::string name() const override { return "halves"; }
  bool has(const Program& program, const Op& op) const override { return ref_->has(program, op); }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    return ref_->bind(source, options);
  }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    return ref_->memory_needs(program, options);
  }
  /// Of one operand that is rounded to 2^-12 of itself at most.
  double tolerance(const Program& program) const override {
    return is_heads(program) ? 0x1p-12 : ref_->tolerance(program);
  }
  const Peaks& peaks() override { return ref_->peaks(); }
  double measure_read_bandwidth() override { return ref_->measure_read_bandwidth(); }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    return ref_->load(sources, progress);
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    const Program& program = source.program;
    auto right = ref_->compile(source, std::move(weights), options);
    if (!is_heads(program)) return right;
    return std::make_unique<HalvesExecutable>(std::move(right), factor_);
  }

 private:
  static bool is_heads(const Program& program) {
    return std::holds_alternative<HeadMatmul>(program.ops().back().args);
  }

  std::unique_ptr<Backend> ref_ = backend::make_ref_backend();
  float factor_;
};

class CompareTest : public testing::Test {
 protected:
  CompareTest() : golden_(test::golden_case("glm-q4_k_m")), model_(model::Model::load(golden_.model)) {}

  std::vector<OpDifference> differences(Backend& judge, Backend& tested, size_t rows) const {
    std::vector<OpDifference> all;
    compare_ops(model_.program, model_.weights, judge, tested, std::span(golden_.tokens).first(rows),
                [&](const OpDifference& d) { all.push_back(d); });
    return all;
  }
  std::vector<std::string> out_of_tolerance(Backend& tested, size_t rows) const {
    std::vector<std::string> names;
    for (const OpDifference& d : differences(*ref_, tested, rows)) {
      if (!d.within()) names.push_back(fmt::format("{} {} {} of {}", d.op, d.tensor, d.error, d.tolerance));
    }
    return names;
  }

  test::Golden golden_;
  model::Model model_;
  std::unique_ptr<Backend> ref_ = backend::make_ref_backend();
};

TEST_F(CompareTest, RightBackendsAgreeOnEveryOp) {
  for (const bool fused : {true, false}) {
    const auto cpu = backend::make_cpu_backend({.threads = 2, .fused = fused});
    for (const size_t rows : {size_t{1}, size_t{9}, size_t{70}})
      EXPECT_THAT(out_of_tolerance(*cpu, rows), testing::IsEmpty()) << fused << " " << rows;
  }
}

TEST_F(CompareTest, EveryOpWithAResultIsThere) {
  const Program parts = legalize(model_.program, *ref_, 3);
  EXPECT_GT(parts.ops().size(), model_.program.ops().size());
  size_t results = 0;
  for (const Op& op : parts.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool written) {
      results += written && parts[id].kind == Kind::Activation ? 1 : 0;
    });
  }
  const auto all = differences(*ref_, *ref_, 3);
  EXPECT_EQ(all.size(), results);
  for (const OpDifference& d : all) {
    EXPECT_EQ(d.error, 0) << d.op;
    EXPECT_TRUE(std::isfinite(d.a)) << d.op << " " << d.tensor << ": it ran on inputs that are not there";
  }
}

TEST_F(CompareTest, TheWalkFollowsTheWholeRun) {
  // The last op's result is the logits, but for the rounding of what passed from op to op.
  const auto all = differences(*ref_, *ref_, golden_.tokens.size());
  const std::vector<float> logits = run_whole(model_.program, model_.weights, *ref_, golden_.tokens);
  EXPECT_LT(test::relative_error(logits, golden_.logits), 1e-3);
  const auto& [row, head, column] = all.back().worst;
  const float largest = *std::max_element(logits.begin(), logits.end());
  EXPECT_NEAR(all.back().a, logits[static_cast<size_t>(row * golden_.vocabulary + column)], 0.1f * largest);
}

TEST_F(CompareTest, RoundedInputsAreWhatEightBitsHold) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i));
  values[3] = 2;
  values[40] = -3;
  const std::vector<float> before = values;
  round_to_eight_bits(values, 64);
  for (size_t i = 0; i < values.size(); ++i) {
    const float step = i < 32 ? 2.0f / 127 : 3.0f / 127;
    EXPECT_NEAR(values[i] / step, std::round(values[i] / step), 1e-4) << i;
    EXPECT_NEAR(values[i], before[i], step / 2 + 1e-6) << i;
  }
  EXPECT_FLOAT_EQ(values[40], -3);
  std::vector<float> odd = {1.2345f, 0, std::numeric_limits<float>::quiet_NaN()};
  round_to_eight_bits(odd, 3);
  EXPECT_EQ(odd[0], 1.2345f);
}

TEST_F(CompareTest, AWrongKernelIsNamedAndNothingElse) {
  // Parts of fused ops that both backends lack, and fused ops that the tested one alone has.
  for (const std::string op : {"0.mla_attend", "1.matmul_add", "1.moe_down_add", "1.route", "matmul",
                               "0.norm_matmul", "0.mla_query", "1.mla_heads", "0.norm_mla_heads"}) {
    for (const float value : {1e3f, std::numeric_limits<float>::quiet_NaN()}) {
      WrongBackend wrong(op, value);
      size_t bad = 0;
      for (const OpDifference& d : differences(*ref_, wrong, 5)) {
        if (d.within()) continue;
        ++bad;
        EXPECT_EQ(d.op, op);
        EXPECT_EQ(d.kernel_b, "spoilt");
        EXPECT_EQ(d.worst[0] + d.worst[1], 0);
        EXPECT_EQ(d.worst[2], 1) << op;
        EXPECT_TRUE(d.b == value || std::isnan(d.b));
      }
      EXPECT_GE(bad, 1u) << op;
    }
  }
}

// In a trained model the values of late layers are what is left of terms seven times as large: halves that
// are right to 2^-12 of each term are not so to 2^-12 of the sum. Which is no licence to be wrong.
TEST(Compare, WhereTermsCancelTheToleranceIsThatOfTheTerms) {
  const model::Model model = model::Model::load(test::source_path("models/fairy-tales.gguf"));
  const std::vector<int32_t> tokens = {1, 400, 12, 77, 900, 5, 31, 260};
  const auto ref = backend::make_ref_backend();
  for (const float factor : {1.0f, 1.01f}) {
    HalvesBackend halves(factor);
    int cancelling = 0, heads = 0, within = 0;
    compare_ops(model.program, model.weights, *ref, halves, tokens, [&](const OpDifference& d) {
      if (d.op.find("head_matmul") == std::string::npos) {
        EXPECT_EQ(d.error, 0) << d.op;
        return;
      }
      EXPECT_EQ(d.kernel_b, "halves of 8 rows");
      ++heads;
      within += d.within() ? 1 : 0;
      cancelling += d.tolerance > 2 * 0x1p-12 ? 1 : 0;
      EXPECT_LT(d.tolerance, 20 * 0x1p-12) << d.op;
    });
    EXPECT_EQ(heads, 16);
    EXPECT_GT(cancelling, 0);
    EXPECT_EQ(within, factor == 1 ? heads : 0);
  }
}

}  // namespace
}  // namespace sluice::engine
