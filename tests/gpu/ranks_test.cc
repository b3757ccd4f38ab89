// Models over two GPUs, each a process, as a user starts them: against their golden cases.
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/file.h"
#include "support/command.h"
#include "support/cuda.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

/// The binary, which in a packed folder lies beside the tests.
std::string rank_binary() {
  return std::filesystem::exists(SLUICE_BINARY) ? SLUICE_BINARY
                                                : std::filesystem::absolute("sluice").string();
}

class CudaRanks : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(CudaRanks, AreWithinTheLimitOfDivergence) {
  const DeviceTurn turn(true);
  std::string why;
  if (!cli::load_cuda_backend(1, why)) GTEST_SKIP() << why;
  const auto& [deal, name] = GetParam();
  const Case& one = *std::ranges::find(kCases, std::string(name), &Case::name);
  const Golden golden = read_case(one);
  const CommandFolder folder("cuda_ranks");
  const std::string tokens = fmt::format(R"({{"tokens": [{}]}})", fmt::join(golden.tokens, ", "));
  write_file(folder.path("tokens"), std::as_bytes(std::span(tokens)));
  for (const int64_t rows : {1, 7, 512}) {
    const std::string command = fmt::format(
        "export WORLD_SIZE=2; run() {{ RANK=$1 {} logits -m {} --backend cuda {} 2 --tokens {} --batch {} -o "
        "{}; }}; "
        "run 1 & run 0 && wait $!",
        rank_binary(), golden.model, deal, folder.path("tokens"), rows, folder.path("logits"));
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const std::string bytes = read_file(folder.path("logits"));
    std::vector<float> logits(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(float));
    ASSERT_EQ(logits.size(), golden.logits.size());
    EXPECT_LT(divergence(golden, logits).best_90, one.kl_limit) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaRanks,
                         testing::Combine(testing::Values("--tensor-parallel", "--pipeline-parallel"),
                                          testing::Values("glm-q4_k_m", "lite-q4_k_m-yarn", "qwen2")));

}  // namespace
}  // namespace sluice::test
