// Models whose layers are dealt out to ranks: each is a thread here, with a channel and a backend of its own.
// No sum is cut, so what they give is what one process gives, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ref/ref_backend.h"
#include "program/op_info.h"
#include "program/places.h"
#include "support/copied_pages.h"
#include "support/golden_cases.h"
#include "support/ranks.h"

namespace sluice::test {
namespace {

constexpr backend::Together kLayers{.deal = backend::Deal::Layers};

std::shared_ptr<program::Backend> one_thread() { return backend::make_cpu_backend({.threads = 1}); }
std::shared_ptr<program::Backend> reference() { return backend::make_ref_backend(); }

class PipelineTest : public testing::TestWithParam<const char*> {};

TEST_P(PipelineTest, GivesTheBitsOfOneProcess) {
  const Case one = *std::ranges::find(kCases, std::string(GetParam()), &Case::name);
  const Golden golden = read_case(one);
  for (const int count : {2, 3}) {
    const Ranks cpu(golden.model, count, one_thread, kLayers);
    for (const int64_t rows : {1, 7, 512})
      EXPECT_EQ(logits_of(golden, cpu.backend(), rows), logits_of(golden, *one_thread(), rows))
          << count << " ranks, " << rows << " rows";
  }
  const Ranks exact(golden.model, 2, reference, kLayers);
  EXPECT_EQ(logits_of(golden, exact.backend(), 7), logits_of(golden, *reference(), 7));
}

// Latent attention, grouped, windows and sinks, groups of experts, and layers with states.
INSTANTIATE_TEST_SUITE_P(Cases, PipelineTest,
                         testing::Values("glm-q4_0", "lite-q4_k_m-yarn", "v3-groups", "qwen2", "gpt-oss-q8_0",
                                         "kimi-linear-q4_k_m", "qwen3next-q8_0"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Pipeline, RanksHaveTheirLayersAlone) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const auto bytes_of = [&](const program::Program& side) {
    const program::Source source{side, model.weights};
    return one_thread()->load({&source, 1}, {})->bytes();
  };
  const int64_t whole = bytes_of(model.program);
  for (const size_t count : {2, 3, 4}) {
    const program::Program cut = program::deal_layers(model.program, count);
    int64_t sum = 0, most = 0, layers = 0;
    for (size_t p = 0; p < count; ++p) {
      const program::Program side = program::program_at(cut, static_cast<int32_t>(p));
      const int64_t bytes = bytes_of(side);
      sum += bytes, most = std::max(most, bytes);
      for (const program::TensorId cache : side.caches()) layers += side[cache].shape[0];
    }
    EXPECT_EQ(sum, whole) << count << ": each weight is at one rank";
    EXPECT_EQ(layers, 8) << count << ": so is each layer of the cache";
    // Eight layers, of which the first is dense; the table and the output matrix are a layer's worth each.
    EXPECT_LT(static_cast<double>(most), 1.4 * static_cast<double>(whole) / static_cast<double>(count));
  }
  const Ranks ranks(path, 3, one_thread, kLayers);
  const program::Source source{model.program, model.weights};
  EXPECT_LT(ranks.backend().load({&source, 1}, {})->bytes(), whole / 2);
  EXPECT_LT(ranks.backend().memory_needs(model.program, {}).weights_bytes, whole / 2);
}

TEST(Pipeline, SomeRanksMayHaveNothingToDo) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const program::Program cut = program::deal_layers(model.program, 12);  // of 8 layers
  std::set<int32_t> places;
  for (const program::Op& op : cut.ops()) places.insert(op.place);
  EXPECT_LE(places.size(), 9u);
  EXPECT_NO_THROW(program::verify(cut));
  EXPECT_EQ(cut[cut.output()].place, 0);
}

/// A step of so many tokens of one sequence, from a position on.
struct OneStep {
  engine::Batch batch;
  OneStep(int32_t first, int32_t count, bool output) : batch(64, 1, 4) {
    const int32_t pages[] = {0, 1, 2, 3};
    batch.set_pages(0, pages);
    for (int32_t i = first; i < first + count; ++i)
      batch.add(1 + i * 7 % 200, i, 0, output && i == first + count - 1);
  }
};

std::vector<float> logits_after(program::Executable& executable, bool give_up) {
  std::vector<std::unique_ptr<OneStep>> steps;
  for (int32_t first = 0; first < 256; first += 64)
    steps.push_back(std::make_unique<OneStep>(first, 64, first == 192));
  std::vector<float> logits;
  for (const auto& one : steps) {
    program::Step step = one->batch.step();
    std::atomic<bool> stop = true;
    if (give_up) {
      step.stop = &stop;
      EXPECT_TRUE(run_step(executable, step).stopped);
      step.stop = nullptr;
    }
    const program::StepResult result = run_step(executable, step);
    EXPECT_FALSE(result.stopped);
    for (const auto& output : result.outputs) logits.assign(output.logits.begin(), output.logits.end());
  }
  return logits;
}

// Steps without outputs go on at later ranks while rank 0 is at the next one.
TEST(Pipeline, StepsBehindEachOtherAndThoseGivenUpChangeNothing) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const program::CompileOptions options{.max_rows = 64, .cache_pages = 4};
  const auto alone = one_thread()->compile(model.program, model.weights, options);
  const std::vector<float> expected = logits_after(*alone, false);
  ASSERT_FALSE(expected.empty());
  for (const int count : {2, 3, 4}) {
    const Ranks ranks(path, count, one_thread, kLayers);
    const auto executable = ranks.backend().compile(model.program, model.weights, options);
    EXPECT_EQ(logits_after(*executable, false), expected) << count;
    EXPECT_EQ(logits_after(*executable, true), expected) << count << ", each given up once before";
  }
}

TEST(Pipeline, MayBePeekedWhereverATensorIs) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const Ranks ranks(path, 3, one_thread, kLayers);
  const auto executable = ranks.backend().compile(model.program, model.weights, {.max_rows = 4});
  std::set<int32_t> places;
  for (const program::Op& op : executable->program().ops()) {
    const auto* copy = std::get_if<program::Copy>(&op.args);
    if (copy == nullptr) continue;
    for (const program::TensorId id : {copy->in.id, copy->out.id}) {
      const program::Tensor& tensor = executable->program()[id];
      const std::vector<float> values(static_cast<size_t>(tensor.columns()), static_cast<float>(id));
      executable->poke(id, 1, values);
      std::vector<float> back(values.size());
      executable->peek(id, 1, back);
      EXPECT_EQ(back, values);
      places.insert(tensor.place);
    }
  }
  EXPECT_EQ(places.size(), 3u);
}

TEST(Ranks, PagesAndStatesGoToMemoryAndBack) {
  using backend::Deal;
  for (const auto& [name, deal] : {std::pair("glm-q4_0", Deal::Layers),
                                   {"glm-q4_0", Deal::Parts},
                                   {"qwen2", Deal::Layers},
                                   {"qwen2", Deal::Parts},
                                   {"kimi-linear-q4_k_m", Deal::Layers}}) {
    const Golden golden = read_case(*std::ranges::find(kCases, std::string(name), &Case::name));
    const Ranks ranks(golden.model, 3, one_thread, {.deal = deal});
    EXPECT_EQ(logits_by_copies(golden, ranks.backend(), true),
              logits_by_copies(golden, ranks.backend(), false))
        << name;
    const Ranks exact(golden.model, 2, reference, {.deal = deal});
    EXPECT_EQ(logits_by_copies(golden, exact.backend(), true),
              logits_by_copies(golden, exact.backend(), false))
        << name;
  }
}

// --- what carries it ---

// Between two ranks that are not the first a connection is made when they first need it, whoever else knocks.
TEST(Channel, HandsOverFromRankToRank) {
  for (const size_t count : {1, 1000, 3'000'000}) {
    std::vector<float> ended(count);
    run_ranks(4, [&](int rank, backend::Channel& channel) {
      std::vector<float> values(count);
      for (int round = 0; round < 3; ++round) {
        if (rank > 0) channel.take(rank - 1, values);
        if (rank == 0) std::ranges::fill(values, static_cast<float>(round));
        for (float& value : values) value += 1;
        if (rank < 3) channel.give(rank + 1, values);
        if (rank == 1) channel.give(3, values);  // past the next one
        if (rank == 3) {
          std::vector<float> early(count);
          channel.take(1, early);
          EXPECT_EQ(early.back() + 2, values.back());
          channel.give(0, values);
        }
        if (rank == 0) channel.take(3, values), ended = values;
      }
    });
    EXPECT_EQ(ended.front(), 6);
    EXPECT_EQ(ended.back(), 6);
  }
}

}  // namespace
}  // namespace sluice::test
