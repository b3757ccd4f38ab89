// Batch-invariant steps on the CUDA backend: whole models in steps of any rows, and answers beside others,
// with drafts, with grammars, after giving way to others and beside some that leave, against answers of
// requests that were alone and had no drafts: the same to the bit.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "model/model.h"
#include "support/answers.h"
#include "support/cuda.h"
#include "support/golden.h"
#include "support/golden_cases.h"
#include "text/constraint.h"

namespace sluice::test {
namespace {

using namespace engine;

class CudaInvariant : public testing::TestWithParam<Case> {};

TEST_P(CudaInvariant, StepsGiveTheSameBitsHoweverTheyAreCut) {
  CUDA_OR_SKIP(cuda);
  const Golden golden = read_case(GetParam());
  const auto cut = [&](int rows) { return logits_of(golden, cuda, rows, quant::Type::F16, true); };
  const std::vector<float> alone = cut(1);
  const Divergence kl = divergence(golden, alone);
  EXPECT_LT(kl.best_90, GetParam().kl_limit);
  EXPECT_LT(kl.mean, 0.02);
  for (const int rows : {2, 7, 8, 512}) EXPECT_EQ(cut(rows), alone) << rows;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaInvariant, testing::ValuesIn(kCases), [](const auto& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// A model's batch-invariant steps, for an engine's options.
struct Served {
  const model::Model& model;
  const text::Tokenizer& tokenizer;
  EngineOptions options;
  std::unique_ptr<program::Executable> executable;

  Served(program::Backend& cuda, const model::Model& of, const text::Tokenizer& reader,
         const EngineOptions& given)
      : model(of), tokenizer(reader), options(given) {
    options.timeless = true;
    executable = cuda.compile(of.program, of.weights,
                              {.max_rows = options.max_rows,
                               .max_outputs = options.outputs(),
                               .cache_pages = options.pages,
                               .batch_invariant = true,
                               .context = options.context,
                               .state_slots = options.state_slots});
  }
};

/// All at once, twice, so that later ones find earlier ones' prefixes, beside requests that leave within
/// their answers. How often one gave way to others.
int32_t expect_same_together(const Served& served, const std::vector<Request>& requests,
                             const std::vector<Answer>& expected) {
  Engine engine(*served.executable, served.tokenizer, served.options);
  int32_t preemptions = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Recorder>> listeners, leaving;
    for (const Request& request : requests) {
      engine.submit(fresh(request), listeners.emplace_back(std::make_shared<Recorder>()));
      const auto& left = leaving.emplace_back(std::make_shared<Recorder>());
      left->also = [&engine](const TokenEvent& event) {
        if (event.index == 5) engine.cancel(event.id);
      };
      engine.submit(fresh(request), left);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answer_of(*listeners[i]), expected[i]) << "request " << i << ", round " << round;
      leaving[i]->wait();
      preemptions += listeners[i]->result.preemptions;
    }
  }
  return preemptions;
}

/// Requests of all kinds: samplers, seeds, stops, penalties, biases, log-probabilities, repetition, a
/// grammar.
std::vector<Request> all_kinds(const text::Tokenizer& tokenizer) {
  std::vector<Request> all = varied_requests(tokenizer, 120);
  for (const size_t i : {0, 3}) {  // a text that repeats itself, by a model that likes to
    Request again = all[i];
    again.prompt.insert(again.prompt.end(), all[i].prompt.begin(), all[i].prompt.end());
    again.sampling.temperature = 0;
    all.push_back(std::move(again));
  }
  const auto vocabulary = std::make_shared<text::ConstraintVocabulary>(tokenizer);
  for (const float temperature : {0.0f, 0.9f}) {
    Request ruled = all[1];
    ruled.sampling.temperature = temperature;
    ruled.constraint = text::gbnf_constraint(R"(root ::= ("the " [a-z]+ " and ")+ "end")",
                                             {.vocabulary = vocabulary, .format = nullptr});
    all.push_back(std::move(ruled));
  }
  return all;
}

TEST(CudaInvariantAnswers, AreTheSameToTheLetterWithDraftsAndNeighbours) {
  CUDA_OR_SKIP(cuda);
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  EngineOptions options{.context = 1024, .max_sequences = 6, .max_rows = 64, .pages = 100};
  std::vector<Request> all = all_kinds(tokenizer);
  const Served plain(cuda, model, tokenizer, options);
  const std::vector<Answer> expected = one_by_one(plain, all);
  all[6].prediction = expected[6].tokens;  // what is likely to come changes nothing, either
  all[7].prediction = expected[1].tokens;
  expect_same_together(plain, all, expected);
  for (const int64_t drafts : {1, 3, 7}) {
    options.draft_tokens = drafts;
    const Served drafting(cuda, model, tokenizer, options);
    Engine engine(*drafting.executable, tokenizer, drafting.options);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto listener = std::make_shared<Recorder>();
      engine.submit(fresh(all[i]), listener);
      EXPECT_EQ(answer_of(*listener), expected[i]) << "request " << i << ", " << drafts << " drafted";
    }
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.accepted_tokens_total, 20);
    EXPECT_GT(stats.draft_tokens_total, stats.accepted_tokens_total) << "some were wrong, too";
  }
  expect_same_together(Served(cuda, model, tokenizer, options), all, expected);
  options.pages = 18;  // too few for all of them
  EXPECT_GT(expect_same_together(Served(cuda, model, tokenizer, options), all, expected), 0);
}

// Attention of several kinds, mixtures, and states that go from piece to piece of a step.
TEST(CudaInvariantAnswers, OfOtherModelsAreTheSameToo) {
  CUDA_OR_SKIP(cuda);
  for (const auto& [name, script] : {std::pair{"glm-q4_k_m", "make.py"},
                                     {"qwen3moe-q4_k_m", kMoe},
                                     {"gpt-oss-mxfp4", kMoe},
                                     {"qwen3next-q4_k_m", kHybrid},
                                     {"kimi-linear-q8_0", kHybrid}}) {
    SCOPED_TRACE(name);
    const model::Model model = model::Model::load(golden_case(name, script).model);
    const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
    EngineOptions options{.context = 256, .max_sequences = 6, .max_rows = 64, .pages = 40, .state_slots = 16};
    const std::vector<Request> all = random_requests(tokenizer.size());
    const std::vector<Answer> expected = one_by_one(Served(cuda, model, tokenizer, options), all);
    options.draft_tokens = 7;
    const Served drafting(cuda, model, tokenizer, options);
    EXPECT_EQ(one_by_one(drafting, all), expected);
    expect_same_together(drafting, all, expected);
  }
}

}  // namespace
}  // namespace sluice::test
