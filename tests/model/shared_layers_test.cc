// Layers dealt out to ranks, each of which shares its own between two places: what the first has no room for
// of a rank's experts, its second computes. Two places of the CPU stand for a GPU and a CPU; the judge is
// transformers, by the golden cases at the limits of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "program/places.h"
#include "support/copied_pages.h"
#include "support/golden_cases.h"
#include "support/ranks.h"
#include "support/slots.h"

namespace sluice::test {
namespace {

constexpr backend::Together kByLayers{.deal = backend::Deal::Layers};
constexpr int64_t kPlentyBytes = int64_t{1} << 40;

using Make = std::shared_ptr<program::Backend> (*)();
std::shared_ptr<program::Backend> one_cpu() { return backend::make_cpu_backend({.threads = 1}); }
std::shared_ptr<program::Backend> one_ref() { return backend::make_ref_backend(); }

/// How a rank shares its layers.
struct Share {
  size_t mixtures = 1000;  ///< that leave, or all of the rank's
  int64_t stream_rows = program::kNeverStream;
  bool slots = false;  ///< as few as there can be
  int64_t bytes = kPlentyBytes;
};

program::Program rank_side(const model::Model& model, int rank, int ranks) {
  return program::program_at(program::deal_layers(model.program, static_cast<size_t>(ranks)), rank);
}

std::shared_ptr<program::Backend> sharing(const model::Model& model, int rank, int ranks, const Share& share,
                                          Make make = one_cpu) {
  const program::Program side = rank_side(model, rank, ranks);
  const size_t mixtures = std::min(share.mixtures, program::routed_experts(side).size());
  int64_t slot_bytes = 0;
  if (share.slots && mixtures > 0) slot_bytes = bytes_for(side, mixtures, fewest_slots(side, mixtures));
  return backend::make_offload_side_backend(make(), make(),
                                            {.mixtures = mixtures,
                                             .bytes = share.bytes,
                                             .stream_rows = share.stream_rows,
                                             .slot_bytes = slot_bytes});
}

/// As many ranks as shares.
class SharedRanks {
 public:
  SharedRanks(const std::string& path, const std::vector<Share>& shares, Make make = one_cpu)
      : model(model::Model::load(path)),
        ranks_(
            path, static_cast<int>(shares.size()), [&](int rank) { return made(shares, rank, make); },
            kByLayers, alike(shares, make)) {}
  program::Backend& backend() const { return ranks_.backend(); }

  const model::Model model;

 private:
  std::shared_ptr<program::Backend> made(const std::vector<Share>& shares, int rank, Make make) const {
    return sharing(model, rank, static_cast<int>(shares.size()), shares[static_cast<size_t>(rank)], make);
  }
  std::vector<std::shared_ptr<program::Backend>> alike(const std::vector<Share>& shares, Make make) const {
    std::vector<std::shared_ptr<program::Backend>> list;
    for (int rank = 0; rank < static_cast<int>(shares.size()); ++rank)
      list.push_back(made(shares, rank, make));
    return list;
  }
  Ranks ranks_;
};

Case golden_named(const std::string& name) { return *std::ranges::find(kCases, name, &Case::name); }

class SharedLayers : public testing::TestWithParam<const char*> {};

// All of both ranks' experts, one layer's of the second alone, steps that stream, and copies in slots.
TEST_P(SharedLayers, AreWithinTheLimitOfOneProcess) {
  const Case one = golden_named(GetParam());
  const Golden golden = read_case(one);
  const model::Model model = model::Model::load(golden.model);
  ASSERT_GT(program::routed_experts(rank_side(model, 1, 2)).size(), 0u);
  const bool has_slots = !program::slots_of(model.program, 1, kPlentyBytes).empty();
  for (const std::vector<Share>& shares : {std::vector<Share>{{}, {}},
                                           {{.mixtures = 0}, {.mixtures = 1}},
                                           {{.stream_rows = 4}, {.stream_rows = 2}},
                                           {{.slots = has_slots}, {.stream_rows = 8, .slots = has_slots}}}) {
    const SharedRanks ranks(golden.model, shares);
    for (const int64_t rows : {1, 7, 512}) {
      const Divergence kl = divergence(golden, logits_of(golden, ranks.backend(), rows));
      EXPECT_LT(kl.best_90, one.kl_limit) << rows << " rows";
    }
  }
  const SharedRanks exact(golden.model, {{}, {}}, one_ref);
  EXPECT_LT(relative_error(logits_of(golden, exact.backend(), 7), golden.logits), 1e-3);
}

// Latent attention, groups of experts, grouped attention without shared experts, experts with biases, and
// layers with states.
INSTANTIATE_TEST_SUITE_P(Cases, SharedLayers,
                         testing::Values("glm-q4_k_m", "lite-q4_k_m-yarn", "v3-groups", "qwen3moe-q4_k_m",
                                         "gpt-oss-q8_0", "qwen3next-q4_k_m"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A streamed step is one of one place, and no sum is cut between ranks.
TEST(SharedLayersOf, StepsThatStreamGiveTheBitsOfOneProcess) {
  const Golden golden = read_case(golden_named("glm-q4_k_m"));
  const SharedRanks ranks(golden.model, {{.stream_rows = 1}, {.stream_rows = 1}});
  EXPECT_EQ(logits_of(golden, ranks.backend(), 7), logits_of(golden, *one_cpu(), 7));
}

/// Logits of the golden tokens as each of several sequences, which have rows of every step.
std::vector<std::vector<float>> of_sequences(const Golden& golden, program::Backend& backend, int32_t count,
                                             int64_t rows_each) {
  const auto length = static_cast<int64_t>(golden.tokens.size());
  const auto pages = static_cast<int32_t>(engine::KvPool::pages_for(length));
  const int64_t rows = rows_each * count;
  const model::Model model = model::Model::load(golden.model);
  const auto executable = backend.compile(model.program, model.weights,
                                          {.max_rows = rows,
                                           .max_outputs = rows,
                                           .cache_pages = pages * count,
                                           .state_slots = 2 * int64_t{count}});
  engine::Batch batch(rows, count, pages);
  std::vector<int32_t> all(static_cast<size_t>(pages * count));
  std::iota(all.rbegin(), all.rend(), 0);  // the first sequence has the last pages
  for (int32_t s = 0; s < count; ++s)
    batch.set_pages(s, std::span(all).subspan(static_cast<size_t>(s * pages), static_cast<size_t>(pages)));
  std::vector<std::vector<float>> logits(static_cast<size_t>(count));
  bool odd = false;
  for (int64_t begin = 0; begin < length; begin += rows_each, odd = !odd) {
    batch.clear();
    const int64_t end = std::min(length, begin + rows_each);
    for (int32_t s = 0; s < count; ++s) {
      batch.set_state(s, {2 * s + (odd ? 1 : 0), 2 * s + (odd ? 0 : 1)});
      for (int64_t i = begin; i < end; ++i)
        batch.add(golden.tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), s, true);
    }
    const program::StepResult result = run_step(*executable, batch.step());
    for (size_t r = 0; r < result.outputs.size(); ++r) {
      const std::span<const float> row = result.outputs[r].logits;
      std::vector<float>& to = logits[r / static_cast<size_t>(end - begin)];
      to.insert(to.end(), row.begin(), row.end());
    }
  }
  return logits;
}

TEST(SharedLayersOf, SeveralSequencesAreWithinTheLimit) {
  for (const char* name : {"glm-q4_k_m", "qwen3next-q4_k_m"}) {
    const Case one = golden_named(name);
    const Golden golden = read_case(one);
    const SharedRanks ranks(golden.model, {{.slots = true}, {.stream_rows = 16, .slots = true}});
    for (const int64_t rows_each : {1, 7}) {
      for (const std::vector<float>& logits : of_sequences(golden, ranks.backend(), 3, rows_each))
        EXPECT_LT(divergence(golden, logits).best_90, one.kl_limit) << name << ", " << rows_each << " rows";
    }
  }
}

// Eight layers of which seven have experts, over more ranks.
TEST(SharedLayersOf, TheBundledModelMayBeSeveralRanks) {
  const Golden golden =
      read_golden(source_path("models/fairy-tales.gguf"), source_path("tests/model/fairy-tales"));
  for (const size_t count : {2, 3, 9}) {
    std::vector<Share> shares(count, Share{.stream_rows = 0, .slots = true});
    shares.back() = {.mixtures = 1};
    const SharedRanks ranks(golden.model, shares);
    for (const int64_t rows : {1, 7, 512})
      EXPECT_LT(divergence(golden, logits_of(golden, ranks.backend(), rows)).best_90, 2.2e-4)
          << count << " ranks, " << rows << " rows";
  }
}

// What is at the first place is counted, and of all ranks the one with least room left is told of.
TEST(SharedLayersOf, MemoryIsThatOfTheRankWithLeastRoom) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const program::CompileOptions options{.max_rows = 64, .cache_pages = 8};
  const auto sum = [](const program::MemoryNeeds& needs) {
    return needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes;
  };
  const auto needs_at = [&](int rank, size_t mixtures) {
    return sum(
        sharing(model, rank, 2, {.mixtures = mixtures})->memory_needs(rank_side(model, rank, 2), options));
  };
  for (const int rank : {0, 1}) {
    const auto experts = program::routed_experts(rank_side(model, rank, 2));
    ASSERT_GT(experts.size(), 1u);
    EXPECT_NEAR(static_cast<double>(needs_at(rank, 0) - needs_at(rank, 1)),
                static_cast<double>(experts.back().bytes), 0.05 * static_cast<double>(experts.back().bytes))
        << rank;
  }
  for (const int64_t more : {int64_t{0}, int64_t{1} << 30}) {
    for (const size_t leave : {size_t{0}, size_t{1000}}) {
      constexpr int64_t kBytes = int64_t{1} << 28;
      const SharedRanks ranks(
          path, {{.mixtures = leave, .bytes = kBytes}, {.mixtures = 1, .bytes = kBytes + more}});
      EXPECT_EQ(ranks.backend().available_bytes(), kBytes);
      const int64_t room = std::min(kBytes - needs_at(0, leave), kBytes + more - needs_at(1, 1));
      EXPECT_EQ(kBytes - sum(ranks.backend().memory_needs(model.program, options)), room) << more << leave;
    }
  }
}

// Each rank's own caches, whichever of its programs has them.
TEST(SharedLayersOf, PagesAndStatesGoToMemoryAndBack) {
  for (const char* name : {"glm-q4_k_m", "qwen3next-q4_k_m"}) {
    const Golden golden = read_case(golden_named(name));
    const SharedRanks ranks(golden.model, {{}, {.stream_rows = 32}});
    EXPECT_EQ(logits_by_copies(golden, ranks.backend(), true),
              logits_by_copies(golden, ranks.backend(), false))
        << name;
  }
}

// Steps have as many rows as the rank that was fitted for fewest.
TEST(SharedLayersOf, RowsOfAStepAreTheFewestOfAllRanks) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const auto fitted = [](int64_t rows) {
    return std::shared_ptr(backend::make_offload_side_backend(
        one_cpu(), one_cpu(), {.mixtures = 1, .bytes = kPlentyBytes, .prompt_rows = rows}));
  };
  const Ranks ranks(path, 2, [&](int rank) { return fitted(rank == 0 ? 1024 : 256); }, kByLayers,
                    {fitted(1024), fitted(256)});
  EXPECT_EQ(dynamic_cast<const program::FittedRows&>(ranks.backend()).fitted_rows(), 256);
  EXPECT_EQ(ranks.backend().facts().prompt_rows, 256);
}

}  // namespace
}  // namespace sluice::test
