// Synthetic models route like trained ones: random tokens spread over the experts, in every layer. Otherwise
// batches and prompts of benchmarks would read fewer experts than real text makes them read.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <vector>

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

/// Of a layer's selections, the share of the half of its experts that are selected most, and the share that
/// is among the experts that were selected last, half of all.
struct Repeated {
  double half = 0, recent = 0;
};
Repeated repeated(const std::vector<float>& ids, int64_t experts) {
  std::vector<double> count(static_cast<size_t>(experts));
  std::vector<float> recent;  // the last one selected stands last
  double hits = 0;
  for (const float id : ids) {
    ++count[static_cast<size_t>(id)];
    const auto found = std::find(recent.begin(), recent.end(), id);
    hits += found != recent.end();
    if (found != recent.end()) {
      recent.erase(found);
    } else if (recent.size() == static_cast<size_t>(experts / 2)) {
      recent.erase(recent.begin());
    }
    recent.push_back(id);
  }
  std::sort(count.rbegin(), count.rend());
  const auto all = static_cast<double>(ids.size());
  return {std::accumulate(count.begin(), count.begin() + experts / 2, 0.0) / all, hits / all};
}

/// On average over the layers of GLM-4.7-Flash's shapes.
Repeated repeated_with(double skew) {
  const test::CommandFolder folder("synth_skew");
  const gguf::SynthModel shape = narrowed("glm-4.7-flash");
  const gguf::SynthOptions options = {
      .model = &shape, .mix = gguf::find_synth_mix("q4_0"), .layers = 12, .router_skew = skew};
  gguf::write_synth(options, gguf::plan_synth(options), folder.path("m.gguf"), [](uint64_t, uint64_t) {});
  const model::Model model = model::Model::load(folder.path("m.gguf"));
  const auto backend = backend::make_cpu_backend({});
  const auto executable = backend->compile(
      model.program, model.weights, {.max_rows = kRows, .cache_pages = MeasuredSteps::pages(1, 2 * kRows)});
  MeasuredSteps steps(*executable, kRows, 1, 2 * kRows, 1);
  steps.prompt_step(0, kRows);
  Repeated sum;
  double layers = 0;
  for (const program::Op& op : executable->program().ops()) {
    const auto* gated = std::get_if<program::NormMoeGateUp>(&op.args);
    const auto* fused = gated != nullptr ? &gated->route : std::get_if<program::NormRoute>(&op.args);
    const auto* route = fused != nullptr ? &fused->route : std::get_if<program::Route>(&op.args);
    if (route == nullptr) continue;
    const program::TensorId id = route->ids.id;
    std::vector<float> ids(static_cast<size_t>(kRows * executable->program()[id].columns()));
    executable->peek(id, kRows, ids);
    const Repeated layer = repeated(ids, shape.experts);
    sum.half += layer.half, sum.recent += layer.recent;
    ++layers;
  }
  return {sum.half / layers, sum.recent / layers};
}

// What the flag's help promises was computed apart, with normal logits (numpy).
TEST(SynthSkew, SomeExpertsAreSelectedMoreOften) {
  const Repeated alike = repeated_with(0), skewed = repeated_with(1), more = repeated_with(1.25);
  std::cout << "half take " << alike.half << ", " << skewed.half << ", " << more.half << "; recent hold "
            << alike.recent << ", " << skewed.recent << ", " << more.recent << "\n";
  EXPECT_LT(alike.half, 0.7);
  EXPECT_NEAR(skewed.half, 0.82, 0.06);
  EXPECT_NEAR(more.recent, 0.75, 0.08);
  EXPECT_LT(alike.recent, 0.55);
}

INSTANTIATE_TEST_SUITE_P(ModelsAndMixes, SynthExperts,
                         testing::Values(Case{"glm-4.7-flash", "q4_0"}, Case{"glm-4.7-flash", "q4_k_m"},
                                         Case{"deepseek-v2-lite", "q4_0"},
                                         Case{"deepseek-v2-lite", "q4_k_m"}));

}  // namespace
}  // namespace sluice::cli
