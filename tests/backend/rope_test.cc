// Rope at the end of the longest contexts, on every backend, against float64: an angle of 200,000 radians
// keeps only two digits when it is computed in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "program/builder.h"
#include "support/command.h"
#include "support/golden.h"

namespace sluice::test {
namespace {

using namespace program;

constexpr int64_t kHeads = 3, kDims = 64;
constexpr int32_t kPositions[] = {0, 1, 4095, 131071, 202751};
constexpr int64_t kRows = std::size(kPositions);

struct RopeCase {
  const char* name;
  RopeParams params;
};

std::vector<double> oracle(const RopeParams& params, std::span<const float> in) {
  const CommandFolder folder("rope");
  write_file(folder.path("in"), std::as_bytes(in));
  std::string positions;
  for (const int32_t position : kPositions) positions += fmt::format("{} ", position);
  const std::string command =
      fmt::format(SLUICE_PYTHON " " SLUICE_SOURCE_DIR "/tests/backend/rope_oracle.py {} {} {} {} {} {} {}",
                  params.pairs == RopePairs::Halves ? "halves" : "neighbours", params.base, params.factor,
                  params.original_context, positions, folder.path("in"), folder.path("out"));
  if (std::system(command.c_str()) != 0) fail("{}: failed", command);
  const std::string bytes = read_file(folder.path("out"));
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// What a backend makes of these rows.
std::vector<float> turn(Backend& backend, const RopeParams& params, std::span<const float> in) {
  Program program;
  Builder b(program);
  const TensorId x = b.activation("x", kStepRows, kHeads, kDims);
  const TensorId y = b.activation("y", kStepRows, kHeads, kDims);
  b.rope(x, params, y);
  program.set_output(y);
  const auto executable = backend.compile(program, WeightBytes(program.tensors().size()), {kRows, kRows, 1});
  executable->poke(x, kRows, in);
  const std::vector<int32_t> zeros(kRows, 0);
  run_step(*executable, {.input = {zeros, kPositions, zeros, zeros, zeros, 1, {}}});
  std::vector<float> turned(in.size());
  executable->peek(y, kRows, turned);
  return turned;
}

class RopeTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeTest, IsRightAtTheEndOfLongContexts) {
  std::vector<float> in(static_cast<size_t>(kRows * kHeads * kDims));
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (float& value : in) value = normal(random);
  const RopeParams& params = GetParam().params;
  const std::vector<double> expected = oracle(params, in);
  ASSERT_EQ(expected.size(), in.size());
  const auto ref = backend::make_ref_backend(), cpu = backend::make_cpu_backend({.threads = 2});
  for (Backend* backend : {ref.get(), cpu.get()}) {
    const std::vector<float> actual = turn(*backend, params, in);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 2e-6 * std::max(1.0, std::abs(expected[i])))
          << backend->name() << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RopeTest,
    testing::Values(RopeCase{"glm", {1e6}}, RopeCase{"lite", {1e4, 40, 4096}},
                    RopeCase{"qwen", {.base = 1e6, .pairs = RopePairs::Halves}},
                    RopeCase{
                        "qwen_yarn",
                        {.base = 1e6, .factor = 4, .original_context = 32768, .pairs = RopePairs::Halves}}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace sluice::test
