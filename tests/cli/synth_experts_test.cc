// Synthetic models route like trained ones: random tokens spread over the experts, in every layer. Otherwise
// batches and prompts of benchmarks would read fewer experts than real text makes them read.
#include <gtest/gtest.h>

#include <iostream>

#include "backend/cpu/cpu_backend.h"
#include "cli/measured_steps.h"
#include "gguf/synth.h"
#include "model/model.h"
#include "profile/experts.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

constexpr int64_t kRows = 512;

/// All layers, heads and experts of a model, each of them narrow.
gguf::SynthModel narrowed(const std::string& name) {
  gguf::SynthModel model = *gguf::find_synth_model(name);
  model.vocabulary = 4096;
  model.width = 256;
  model.dense_width = 512;
  if (model.q_rank > 0) model.q_rank = 128;
  model.kv_rank = 128;
  model.nope = model.value = 32;
  model.rope = 32;
  model.expert_width = 64;
  return model;
}

struct Case {
  const char *model, *mix;
};

class SynthExperts : public testing::TestWithParam<Case> {};

TEST_P(SynthExperts, RandomTokensSelectNearlyAsManyAsUniformSelectionWould) {
  const test::CommandFolder folder("synth_experts");
  const gguf::SynthModel shape = narrowed(GetParam().model);
  const gguf::SynthOptions options = {.model = &shape, .mix = gguf::find_synth_mix(GetParam().mix)};
  gguf::write_synth(options, gguf::plan_synth(options), folder.path("m.gguf"), [](uint64_t, uint64_t) {});
  const model::Model model = model::Model::load(folder.path("m.gguf"));
  const auto backend = backend::make_cpu_backend({});
  const auto executable = backend->compile(
      model.program, model.weights, {.max_rows = kRows, .cache_pages = MeasuredSteps::pages(1, 2 * kRows)});
  MeasuredSteps steps(*executable, kRows, 1, 2 * kRows, 1);
  int64_t position = 0;
  struct Steps {
    int64_t rows;
    int count;
  };
  // Of eight rows some steps: the least of 46 layers in one of them is mostly chance.
  for (const auto& [rows, count] : {Steps{8, 6}, Steps{32, 1}, Steps{512, 1}}) {
    double distinct = 0, least = 0, uniform = 0;
    for (int step = 0; step < count; ++step, position += rows) {
      steps.prompt_step(position, rows);
      const profile::ExpertCount seen = profile::count_experts(*executable, rows);
      distinct += seen.distinct / count, least += static_cast<double>(seen.least) / count;
      uniform = seen.uniform;
    }
    std::cout << GetParam().model << " " << GetParam().mix << ", " << rows << " rows: " << distinct
              << " experts a layer, " << least << " where they are fewest; uniform selection: " << uniform
              << "\n";
    EXPECT_GE(distinct, 0.93 * uniform);
    EXPECT_GE(least, 0.75 * uniform);
  }
}

INSTANTIATE_TEST_SUITE_P(ModelsAndMixes, SynthExperts,
                         testing::Values(Case{"glm-4.7-flash", "q4_0"}, Case{"glm-4.7-flash", "q4_k_m"},
                                         Case{"deepseek-v2-lite", "q4_0"},
                                         Case{"deepseek-v2-lite", "q4_k_m"}));

}  // namespace
}  // namespace sluice::cli
