// The engine's executables against logits that transformers computed: tests/golden (random models of every
// layout and type) and the bundled model.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "support/golden_cases.h"
#include "support/isas.h"

namespace sluice::test {
namespace {

std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads = 2) {
  return name == "ref" ? backend::make_ref_backend() : backend::make_cpu_backend({.threads = threads});
}

class GoldenTest : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(GoldenTest, ReferenceIsWithinOneThousandth) {
  const auto& [golden_name, rows] = GetParam();
  const Golden golden = read_case(golden_name);
  EXPECT_LT(relative_error(logits_of(golden, *make_backend("ref"), rows), golden.logits), 1e-3);
}

TEST_P(GoldenTest, CpuIsWithinTheLimitOfDivergence) {
  const auto& [golden_name, rows] = GetParam();
  const Golden golden = read_case(golden_name);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    const Divergence kl = divergence(golden, logits_of(golden, *cpu, rows));
    EXPECT_LT(kl.best_90, golden_name.kl_limit);
    EXPECT_LT(kl.mean, 0.02);
  }
}

/// Steps in which some matrices go through tiles and others through byte products: by type (24 rows), and
/// experts apart from what all rows share.
TEST(Golden, CpuIsWithinTheLimitWhereSomeProductsAreTiled) {
  if (backend::cpu::best_isa() != backend::cpu::Isa::Amx) GTEST_SKIP() << "this machine has no AMX";
  for (const Case& one : kCases) {
    const Golden golden = read_case(one);
    const auto cpu = backend::make_cpu_backend({.threads = 2});
    for (const int64_t rows : {14, 24}) {
      EXPECT_LT(divergence(golden, logits_of(golden, *cpu, rows)).best_90, one.kl_limit)
          << one.name << " " << rows;
    }
  }
}

/// Eight bits of the cache beside eight bits of activations, both 32 under a scale: no limit is another one.
TEST_P(GoldenTest, CpuIsWithinTheSameLimitWithACacheOfEightBits) {
  const auto& [golden_name, rows] = GetParam();
  const Golden golden = read_case(golden_name);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    const Divergence kl = divergence(golden, logits_of(golden, *cpu, rows, quant::Type::Q8_0));
    EXPECT_LT(kl.best_90, golden_name.kl_limit);
    EXPECT_LT(kl.mean, 0.02);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(1, 7, 512)),
                         [](const auto& param) {
                           std::string name = fmt::format("{}_rows_{}", std::get<0>(param.param).name,
                                                          std::get<1>(param.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// What the cache's format alone costs, everything else being float32: as limits.py simulates it.
TEST(Golden, ACacheOfEightBitsCostsWhatItsSimulationSays) {
  for (const Case& one : kCases) {
    if (one.cache_limit == 0) continue;
    const Golden golden = read_case(one);
    const auto ref = backend::make_ref_backend();
    const Divergence kl = divergence(golden, logits_of(golden, *ref, 512, quant::Type::Q8_0));
    EXPECT_LT(kl.best_90, one.cache_limit) << one.name;
    EXPECT_GT(kl.best_90, 1e-8) << one.name << ": the cache was float32";
  }
}

/// Steps of so many rows attend one by one: of a latent cache 128 rows and more attend to expanded keys, of
/// other ones 32 and more to arranged ones.
constexpr int64_t kRowsOfLatent = 100, kRowsOfGrouped = 31;

TEST(Golden, CpuGivesTheSameBitsWithACacheOfEightBits) {
  for (const auto& [golden, most] : {std::pair(golden_case("glm-q4_0"), kRowsOfLatent),
                                     std::pair(oracle_case("qwen2", "qwen2"), kRowsOfGrouped)}) {
    for (const backend::cpu::Isa isa : usable_isas()) {
      SCOPED_TRACE(golden.model + " " + std::string(backend::cpu::isa_name(isa)));
      const auto logits = [&, &golden = golden](int threads, int64_t rows) {
        return logits_of(golden, *backend::make_cpu_backend({.threads = threads, .isa = isa}), rows,
                         quant::Type::Q8_0);
      };
      const auto one = logits(1, 1);
      EXPECT_EQ(one, logits(3, 7));
      if (isa < backend::cpu::Isa::Amx) {
        EXPECT_EQ(one, logits(2, most));
      }
    }
  }
}

TEST(Golden, CpuGivesTheSameBitsWhateverTheRowsThreadsAndRepacking) {
  for (const auto& [golden, most] : {std::pair(golden_case("glm-q4_k_m"), kRowsOfLatent),
                                     std::pair(golden_case("glm-rotate"), kRowsOfLatent),
                                     std::pair(oracle_case("qwen2", "qwen2"), kRowsOfGrouped),
                                     std::pair(golden_case("qwen3next-q4_k_m", kHybrid), kRowsOfGrouped),
                                     std::pair(golden_case("kimi-linear-q4_k_m", kHybrid), kRowsOfLatent)}) {
    for (const backend::cpu::Isa isa : usable_isas()) {
      SCOPED_TRACE(golden.model + " " + std::string(backend::cpu::isa_name(isa)));
      const auto logits = [&, &golden = golden](int threads, int64_t rows, bool repack) {
        return logits_of(
            golden, *backend::make_cpu_backend({.threads = threads, .repack = repack, .isa = isa}), rows);
      };
      const auto one = logits(1, 1, true);
      EXPECT_EQ(one, logits(3, 7, true));
      EXPECT_EQ(one, logits(2, 7, false));
      if (isa < backend::cpu::Isa::Amx) {
        EXPECT_EQ(one, logits(1, most, true));
      } else if (golden.tokens.size() <= 96) {
        // With rows enough, 48 and 96 or 32, all products go through tiles of bf16: the same bits among
        // themselves.
        EXPECT_EQ(logits(1, 48, true), logits(3, 512, true));
        EXPECT_EQ(logits(1, 48, true), logits(2, 512, false));
      }
    }
  }
}

/// A sequence of a mixed step: its tokens so far and its pages.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;
  size_t next = 0;
};

class SharedStep : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(SharedStep, ShuffledPagesAndTwoNeighboursChangeNothing) {
  const auto& [backend_name, is_grouped] = GetParam();
  const Golden golden = is_grouped ? oracle_case("qwen3", "qwen3") : golden_case("glm-q4_0");
  const model::Model model = model::Model::load(golden.model);
  std::mt19937 random(5);
  std::vector<Sequence> sequences(3);
  sequences[1].tokens = golden.tokens;
  for (const size_t i : {0, 2}) {
    for (size_t n = 0; n < 20 + 6 * i; ++n) {
      sequences[i].tokens.push_back(
          static_cast<int32_t>(random() % static_cast<uint32_t>(golden.vocabulary)));
    }
  }
  constexpr int32_t kPages = 9;
  std::vector<int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  constexpr int64_t kRows = 11;
  engine::Batch batch(kRows, 3, 3);
  for (int32_t s = 0; s < 3; ++s) {
    sequences[static_cast<size_t>(s)].pages.assign(pages.begin() + 3 * s, pages.begin() + 3 * s + 3);
    batch.set_pages(s, sequences[static_cast<size_t>(s)].pages);
  }
  const auto backend = make_backend(backend_name);
  const auto executable = backend->compile(model.program, model.weights, {kRows, kRows, kPages});

  // Rows of the three sequences are interleaved at random; the golden sequence's logits are collected.
  std::vector<float> logits(static_cast<size_t>(kRows * golden.vocabulary)), collected;
  while (sequences[1].next < sequences[1].tokens.size()) {
    batch.clear();
    std::vector<int32_t> owners;
    while (batch.rows() < kRows && sequences[1].next < sequences[1].tokens.size()) {
      const auto s = static_cast<int32_t>(random() % 3);
      Sequence& sequence = sequences[static_cast<size_t>(s)];
      if (sequence.next == sequence.tokens.size()) continue;
      const size_t position = sequence.next++;
      batch.add(sequence.tokens[position], static_cast<int32_t>(position), s, true);
      owners.push_back(s);
    }
    run_logits(*executable, batch.input(), logits);
    for (size_t r = 0; r < owners.size(); ++r) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(r) * golden.vocabulary;
      if (owners[r] == 1) collected.insert(collected.end(), row, row + golden.vocabulary);
    }
  }
  EXPECT_EQ(sequences[0].next, sequences[0].tokens.size());
  EXPECT_EQ(collected, logits_of(golden, *backend, 1));
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedStep,
                         testing::Combine(testing::Values("ref", "cpu"), testing::Bool()),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  (std::get<1>(param.param) ? "_grouped" : "_latent");
                         });

TEST(BundledModel, AgreesWithTransformers) {
  const Golden golden =
      read_golden(source_path("models/fairy-tales.gguf"), source_path("tests/model/fairy-tales"));
  for (const int64_t rows : {1, 7, 512}) {
    EXPECT_LT(relative_error(logits_of(golden, *make_backend("ref"), rows), golden.logits), 1e-3) << rows;
    EXPECT_LT(divergence(golden, logits_of(golden, *make_backend("ref"), rows, quant::Type::Q8_0)).best_90,
              2.96e-5);  // tests/golden/limits.py
    EXPECT_LT(divergence(golden, logits_of(golden, *make_backend("cpu"), rows)).best_90, 2.2e-4)
        << rows;  // what 8-bit activations cost: tools/train/export.py limit
    EXPECT_LT(divergence(golden, logits_of(golden, *make_backend("cpu"), rows, quant::Type::Q8_0)).best_90,
              2.2e-4)
        << rows;
  }
}

}  // namespace
}  // namespace sluice::test
