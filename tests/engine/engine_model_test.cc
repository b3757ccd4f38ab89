// The engine with models on the CPU backend: neighbours, cached prefixes, preemption and cancels change no
// text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "engine/perplexity.h"
#include "engine/scorer.h"
#include "model/model.h"
#include "program/offload.h"
#include "support/ahead_executable.h"
#include "support/answers.h"
#include "support/recorder.h"
#include "support/small_model.h"
#include "support/wrapped_executable.h"

namespace sluice::engine {
namespace {

using test::Answer, test::answer_of, test::one_by_one, test::Recorder, test::varied_requests;

const char* const kTales = SLUICE_SOURCE_DIR "/models/fairy-tales.gguf";
/// Rows of steps whose products add up in the order of one row's at every tier: amx multiplies matrices on
/// tiles from 12 on (docs/house.md, the CPU backend).
constexpr int64_t kFewRows = 11;

/// How executables keep the contract of stepping: as the CPU's does, with the obligatory alone, or with all
/// that may be wanted; or as that of a GPU does whose experts are the CPU's, for which two CPUs stand.
enum class Stepping : uint8_t { Cpu, Minimal, Full, Hybrid };

void PrintTo(Stepping stepping, std::ostream* out) {
  constexpr const char* kNames[] = {"Cpu", "Minimal", "Full", "Hybrid"};
  *out << kNames[static_cast<size_t>(stepping)];
}

/// Hybrid: half of the model's mixtures of experts are the second place's. A team of threads is Cpu's alone:
/// the others would wait at its meetings, and every step has the same bits.
std::unique_ptr<program::Backend> backend_of(Stepping stepping, const model::Model& model) {
  if (stepping != Stepping::Hybrid)
    return backend::make_cpu_backend({.threads = stepping == Stepping::Cpu ? 2 : 1});
  const size_t mixtures = (program::routed_experts(model.program).size() + 1) / 2;
  return backend::make_offload_backend(backend::make_cpu_backend({.threads = 1}),
                                       backend::make_cpu_backend({.threads = 1}),
                                       {.mixtures = mixtures, .bytes = int64_t{1} << 40});
}

std::unique_ptr<program::Executable> wrapped(Stepping stepping, std::unique_ptr<program::Executable> of) {
  if (stepping == Stepping::Minimal) return std::make_unique<test::MinimalExecutable>(std::move(of));
  if (stepping == Stepping::Full) return std::make_unique<test::FullExecutable>(std::move(of));
  return of;
}

class EngineModel : public testing::TestWithParam<Stepping> {};

INSTANTIATE_TEST_SUITE_P(Steppings, EngineModel,
                         testing::Values(Stepping::Cpu, Stepping::Minimal, Stepping::Full, Stepping::Hybrid),
                         testing::PrintToStringParamName());

/// A model compiled for an engine's options.
struct Served {
  model::Model model;
  text::Tokenizer tokenizer;
  EngineOptions options;
  std::unique_ptr<program::Backend> backend;
  std::unique_ptr<program::Executable> executable;

  Served(Stepping stepping, const std::string& path, const EngineOptions& given, bool batch_invariant,
         int64_t aside_rows = 0)
      : model(model::Model::load(path)),
        tokenizer(model::load_tokenizer(model.file)),
        options(given),
        backend(backend_of(stepping, model)) {
    executable = wrapped(stepping, backend->compile(model.program, model.weights,
                                                    {.max_rows = options.max_rows,
                                                     .max_outputs = options.outputs(),
                                                     .cache_pages = options.pages,
                                                     .batch_invariant = batch_invariant,
                                                     .aside_rows = aside_rows}));
  }
};

/// In place of what the batch holds: rows [first, last) of a sequence whose tokens follow from their
/// positions and `factor`. The last one's logits are wanted.
void fill(Batch& batch, int32_t sequence, std::span<const int32_t> pages, int32_t first, int32_t last,
          int32_t factor) {
  batch.clear();
  batch.set_pages(sequence, pages);
  for (int32_t at = first; at < last; ++at) batch.add(1 + at * factor % 200, at, sequence, at + 1 == last);
}

// A step that was given up, wherever that was, leaves nothing behind: the next one writes and reads what it
// would have.
TEST(GivenUpSteps, LeaveNoTrace) {
  const EngineOptions options{.context = 512, .max_sequences = 1, .max_rows = 64, .pages = 8};
  Served served(Stepping::Cpu, kTales, options, false);
  Batch batch(64, 1, 8);
  const int32_t pages[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto columns = static_cast<size_t>(served.model.program[served.model.program.output()].columns());
  // The logits behind 128 tokens, each of whose steps is given up `before` times first.
  const auto logits = [&](int before) {
    std::vector<float> row(columns);
    for (int32_t position = 0; position < 128; position += 64) {
      fill(batch, 0, pages, position, position + 64, 7);
      program::Step step = batch.step();
      std::atomic<bool> stop = false;
      step.stop = &stop;
      for (int i = 0; i < before; ++i) {
        std::thread late([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(200 * i));
          stop = true;
        });
        run_step(*served.executable, step);
        late.join();
        if (i == 0) {
          stop = true;
          EXPECT_TRUE(run_step(*served.executable, step).stopped);
        }
        stop = false;
      }
      const program::StepResult result = run_step(*served.executable, step);
      EXPECT_FALSE(result.stopped);
      std::ranges::copy(result.outputs[0].logits, row.begin());
    }
    return row;
  };
  const std::vector<float> expected = logits(0);
  EXPECT_EQ(logits(6), expected);
}

// A step that pauses wherever it can, with another one aside each time, computes what it would have, and so
// do those.
TEST(PausedSteps, AndThoseAsideChangeNothing) {
  constexpr int64_t kAside = 16;
  const EngineOptions options{.context = 512, .max_sequences = 2, .max_rows = 64, .pages = 16};
  Served served(Stepping::Cpu, kTales, options, false, kAside);
  Batch batch(64, 2, 8), other(kAside, 2, 8);
  const int32_t pages[] = {0, 1, 2, 3, 4, 5, 6, 7}, other_pages[] = {8, 9, 10, 11, 12, 13, 14, 15};
  using Rows = std::vector<std::vector<float>>;
  // The logits behind every step of the one sequence, and of the other. Of that, a step whenever the first
  // one pauses, until `others` of them have run, and then the rest.
  const auto logits = [&](bool pauses, int others) {
    std::pair<Rows, Rows> out;
    int32_t next = 0;
    const auto step_aside = [&](program::Turn turn) {
      const int32_t rows = 1 + next % 3 * 7;
      fill(other, 1, other_pages, next, next + rows, 11);
      next += rows;
      program::Step step = other.step();
      step.turn = turn;
      const program::StepResult result = run_step(*served.executable, step);
      EXPECT_FALSE(result.paused || result.stopped);
      out.second.emplace_back(result.outputs[0].logits.begin(), result.outputs[0].logits.end());
    };
    const std::atomic<bool> pause = pauses;
    for (int32_t position = 0; position < 128; position += 64) {
      fill(batch, 0, pages, position, position + 64, 7);
      program::Step step = batch.step();
      step.pause = &pause;
      program::StepResult result = run_step(*served.executable, step);
      EXPECT_EQ(result.paused, pauses);
      for (step.turn = program::Turn::Resumed; result.paused;) {
        if (std::ssize(out.second) < others) step_aside(program::Turn::Aside);
        result = run_step(*served.executable, step);
      }
      EXPECT_FALSE(result.stopped);
      out.first.emplace_back(result.outputs[0].logits.begin(), result.outputs[0].logits.end());
    }
    while (std::ssize(out.second) < others) step_aside(program::Turn::Whole);
    return out;
  };
  const auto expected = logits(false, 30);
  EXPECT_EQ(logits(true, 30), expected);
}

// What a load is planned with is what it takes.
TEST(PausedSteps, TakeTheMemoryThatIsPlannedForThem) {
  const EngineOptions options{.context = 512, .max_sequences = 2, .max_rows = 256, .pages = 16};
  int64_t planned[2] = {}, taken[2] = {};
  for (const bool pauses : {false, true}) {
    const int64_t aside_rows = pauses ? 128 : 0;
    const Served served(Stepping::Cpu, kTales, options, false, aside_rows);
    EXPECT_EQ(served.executable->facts().aside_rows, aside_rows);
    planned[pauses] = served.backend
                          ->memory_needs(served.model.program, {.max_rows = options.max_rows,
                                                                .max_outputs = options.max_sequences,
                                                                .cache_pages = options.pages,
                                                                .aside_rows = aside_rows})
                          .scratch_bytes;
    taken[pauses] = served.executable->memory_bytes();
  }
  EXPECT_GT(planned[1] - planned[0], 100'000);
  EXPECT_EQ(taken[1] - taken[0], planned[1] - planned[0]);
}

/// All at once, in three rounds, so that later ones find earlier ones' prefixes.
void expect_same_together(Served& served, const std::vector<Request>& requests,
                          const std::vector<Answer>& alone) {
  Engine engine(*served.executable, served.tokenizer, served.options);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t which = round == 1 ? requests.size() - 1 - i : i;
      listeners.push_back(std::make_shared<Recorder>());
      engine.submit(requests[which], listeners.back());
      if (round == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    int64_t cached = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t which = round == 1 ? requests.size() - 1 - i : i;
      EXPECT_EQ(answer_of(*listeners[i]), alone[which]) << "request " << which << ", round " << round;
      cached += listeners[i]->result.cached_tokens;
    }
    EXPECT_GT(cached, round == 0 ? 0 : 300) << "round " << round;
  }
}

/// Serves by steps that begin ahead what it served without; `eager`: they run at once
/// (support/ahead_executable.h).
test::AheadExecutable& run_ahead(Served& served, bool eager) {
  auto ahead = std::make_unique<test::AheadExecutable>(std::move(served.executable), eager);
  test::AheadExecutable& out = *ahead;
  served.executable = std::move(ahead);
  return out;
}

TEST_P(EngineModel, NeighboursAndCachedPrefixesChangeNothingInStepsOfFewRows) {
  Served served(GetParam(), kTales, {.context = 1024, .max_sequences = 6, .max_rows = kFewRows, .pages = 60},
                false);
  const auto all = varied_requests(served.tokenizer, 40);
  expect_same_together(served, all, one_by_one(served, all));
}

TEST_P(EngineModel, StepsThatPauseChangeNothing) {
  // Long steps of as many rows as they all have, which pause as soon as they can.
  const EngineOptions options{
      .context = 1024, .max_sequences = 6, .max_rows = kFewRows, .pages = 60, .max_itl_ms = 0.1};
  Served served(GetParam(), kTales, options, false, kFewRows - 1);
  const auto all = varied_requests(served.tokenizer, 40);
  expect_same_together(served, all, one_by_one(served, all));
}

TEST_P(EngineModel, DraftsChangeNothing) {
  EngineOptions options{.context = 1024, .max_sequences = 6, .max_rows = kFewRows, .pages = 60};
  Served plain(GetParam(), kTales, options, false);
  auto all = varied_requests(plain.tokenizer, 120);
  for (size_t i : {0, 3}) {  // a text that repeats itself, by a model that likes to
    Request again = all[i];
    again.prompt.insert(again.prompt.end(), all[i].prompt.begin(), all[i].prompt.end());
    again.sampling.temperature = 0;
    all.push_back(std::move(again));
  }
  const auto alone = one_by_one(plain, all);
  all[6].prediction = alone[6].tokens;
  all[7].prediction = alone[1].tokens;
  for (const int64_t drafts : {1, 3, 7}) {
    options.draft_tokens = drafts;
    options.timeless = true;
    Served drafting(GetParam(), kTales, options, false);
    Engine engine(*drafting.executable, drafting.tokenizer, drafting.options);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto listener = std::make_shared<Recorder>();
      engine.submit(all[i], listener);
      EXPECT_EQ(answer_of(*listener), alone[i]) << "request " << i << ", " << drafts << " drafted";
    }
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.accepted_tokens_total, 20);
    EXPECT_GT(stats.draft_tokens_total, stats.accepted_tokens_total) << "some were wrong, too";
    EXPECT_TRUE(engine.drain(10));
  }
  options.draft_tokens = 7;
  Served drafting(GetParam(), kTales, options, false);
  expect_same_together(drafting, all, alone);
  // With too few pages for all of them, and in long steps, too.
  options.pages = 20, options.max_itl_ms = 0.1;
  Served tight(GetParam(), kTales, options, false, kFewRows - 1);
  expect_same_together(tight, all, alone);
  // A step with drafts is none that another one follows ahead.
  options.pages = 60;
  Served ahead(GetParam(), kTales, options, false);
  run_ahead(ahead, false);
  expect_same_together(ahead, all, alone);
}

/// What a text's rows say of the tokens behind them, from double sums over their logits.
struct TextScores {
  std::vector<double> logprobs;    ///< of the tokens from the second on
  std::vector<int32_t> likeliest;  ///< in their places
};

TextScores scores_of(program::Executable& executable, const std::vector<int32_t>& tokens) {
  TextScores scores;
  Scorer(executable, 512, 64).run(tokens, 0, [&](int64_t position, std::span<const float> logits) {
    const auto next = static_cast<size_t>(position) + 1;
    if (next == tokens.size()) return;
    scores.logprobs.push_back(logits[static_cast<size_t>(tokens[next])] - log_sum_exp(logits));
    scores.likeliest.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
  });
  return scores;
}

// Log-probabilities of prompts are those of their texts read at once, however few rows a step may give,
// beside others, with what is cached and after giving way; and of a text that nothing follows, too.
TEST_P(EngineModel, PromptsAreScoredLikeTheirTexts) {
  EngineOptions options{.context = 512, .max_sequences = 4, .max_rows = 64, .pages = 10, .scored_rows = 23};
  Served served(GetParam(), kTales, options, true);
  const program::CompileOptions compile{.max_rows = 64, .max_outputs = 64, .cache_pages = 8};
  const auto whole = served.backend->compile(served.model.program, served.model.weights, compile);
  const auto judge = backend::make_ref_backend();
  const auto reference = judge->compile(served.model.program, served.model.weights, compile);
  auto all = varied_requests(served.tokenizer, 150);
  std::vector<TextScores> expected;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].top_logprobs = static_cast<int32_t>(i % 3);
    all[i].prompt_logprobs = i != 4;
    all[i].max_tokens = i % 2 == 0 ? 150 : 0;
    all[i].ignore_end = true;
    all[i].stops.clear();
    expected.push_back(scores_of(*whole, all[i].prompt));
  }
  EXPECT_EQ(scores_of(*reference, all[0].prompt).likeliest, expected[0].likeliest);
  Engine engine(*served.executable, served.tokenizer, served.options);
  int32_t preemptions = 0;
  for (int round = 0; round < 2; ++round) {  // the second one could take all of it from the cache
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (const Request& request : all)
      engine.submit(request, listeners.emplace_back(std::make_shared<Recorder>()));
    for (size_t i = 0; i < all.size(); ++i) {
      const Result& result = listeners[i]->wait();
      preemptions += result.preemptions;
      EXPECT_EQ(result.finish, Finish::Length);
      EXPECT_EQ(result.generated_tokens, all[i].max_tokens);
      const auto& prompt = listeners[i]->prompt;
      ASSERT_EQ(prompt.size(), all[i].prompt_logprobs ? all[i].prompt.size() - 1 : 0u) << i;
      for (size_t at = 0; at < prompt.size(); ++at) {
        ASSERT_EQ(prompt[at].size(), 1u + i % 3);
        EXPECT_EQ(prompt[at][0].token, all[i].prompt[at + 1]);
        EXPECT_NEAR(prompt[at][0].logprob, expected[i].logprobs[at], 2e-5) << i << ", " << at;
        if (i % 3 > 0) {
          EXPECT_EQ(prompt[at][1].token, expected[i].likeliest[at]) << i << ", " << at;
        }
      }
    }
  }
  EXPECT_GT(preemptions, 0) << "the pool is too large to show it";
}

TEST_P(EngineModel, NeighboursChangeNothingInAnyStepThatIsBatchInvariant) {
  Served served(GetParam(), kTales, {.context = 1024, .max_sequences = 6, .max_rows = 256, .pages = 60},
                true);
  const auto all = varied_requests(served.tokenizer, 40);
  const auto alone = one_by_one(served, all);
  expect_same_together(served, all, alone);
  Served narrow(GetParam(), kTales, {.context = 1024, .max_sequences = 6, .max_rows = 7, .pages = 60}, true);
  EXPECT_EQ(one_by_one(narrow, all), alone) << "however the prompts are cut";
  Served pausing(GetParam(), kTales,
                 {.context = 1024, .max_sequences = 6, .max_rows = 256, .pages = 60, .max_itl_ms = 5}, true,
                 32);
  expect_same_together(pausing, all, alone);
}

/// Random weights give near-ties everywhere.
TEST_P(EngineModel, BatchInvariantHoldsForASyntheticGlmFile) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("engine-" + std::to_string(::getpid()) + ".gguf");
  test::write_small_model("glm-4.7-flash", "q4_0", path);
  const EngineOptions options{.context = 256, .max_sequences = 6, .max_rows = 128, .pages = 24};
  {
    Served served(GetParam(), path, options, true);
    const auto all = test::random_requests(served.tokenizer.size());
    expect_same_together(served, all, one_by_one(served, all));
  }
  std::filesystem::remove(path);
}

/// Not a check of speed: says what the one order costs on this machine.
TEST_P(EngineModel, SaysWhatBatchInvariantCosts) {
  double seconds[2] = {};
  for (const bool invariant : {false, true}) {
    Served served(GetParam(), kTales, {.context = 1024, .max_sequences = 1, .max_rows = 512, .pages = 16},
                  invariant);
    Request request{.prompt = std::vector<int32_t>(1000, 300), .max_tokens = 1, .use_cache = false};
    Engine engine(*served.executable, served.tokenizer, served.options);
    double best = 1e9;
    for (int i = 0; i < 4; ++i) {
      const auto listener = std::make_shared<Recorder>();
      engine.submit(request, listener);
      best = std::min(best, 1e-9 * static_cast<double>(listener->wait().prompt_ns));
    }
    seconds[invariant] = best;
  }
  std::printf("a prompt of 1000 tokens: %.0f tokens/s, batch-invariant %.0f tokens/s\n", 1000 / seconds[0],
              1000 / seconds[1]);
  EXPECT_GT(seconds[0], 0);
}

TEST_P(EngineModel, PreemptionChangesNoText) {
  Served served(GetParam(), kTales, {.context = 512, .max_sequences = 4, .max_rows = kFewRows, .pages = 9},
                false);
  std::vector<Request> all;
  for (uint64_t i = 0; i < 6; ++i) {
    Request request{
        .prompt = served.tokenizer.encode("Once there were " + std::to_string(i) + " hens and", true),
        .max_tokens = 230};
    request.ignore_end = true;
    request.sampling.seed = i;
    all.push_back(std::move(request));
  }
  const auto alone = one_by_one(served, all);
  Engine engine(*served.executable, served.tokenizer, served.options);
  std::vector<std::shared_ptr<Recorder>> listeners;
  for (const Request& request : all)
    engine.submit(request, listeners.emplace_back(std::make_shared<Recorder>()));
  int32_t preemptions = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(answer_of(*listeners[i]), alone[i]) << i;
    preemptions += listeners[i]->result.preemptions;
  }
  EXPECT_GT(preemptions, 0) << "the pool is too large to show it";
  ASSERT_TRUE(engine.drain(10));
  EXPECT_EQ(engine.stats().preemptions_total, preemptions);
}

TEST_P(EngineModel, SeveralAnswersToOnePromptReadItOnce) {
  Served served(GetParam(), kTales, {.context = 1024, .max_sequences = 8, .max_rows = kFewRows, .pages = 60},
                false);
  const auto prompt = varied_requests(served.tokenizer, 1)[1].prompt;
  ASSERT_GT(prompt.size(), 129u);
  Engine engine(*served.executable, served.tokenizer, served.options);
  std::vector<std::shared_ptr<Recorder>> listeners;
  std::set<std::string> texts;
  for (uint64_t i = 0; i < 4; ++i) {
    Request request{.prompt = prompt, .max_tokens = 30};
    request.sampling.seed = i;
    engine.submit(request, listeners.emplace_back(std::make_shared<Recorder>()));
  }
  int64_t computed = 0;
  for (const auto& listener : listeners) {
    const Result& result = listener->wait();
    computed += result.prompt_tokens - result.cached_tokens;
    texts.insert(listener->text);
  }
  EXPECT_EQ(texts.size(), 4u) << "seeds differ";
  EXPECT_LE(computed, std::ssize(prompt) + 3 * 64);
}

/// Greedy requests whose tokens are all that is asked of them, so that steps can begin ahead; they end in
/// many ways.
std::vector<Request> plain_requests(const text::Tokenizer& tokenizer) {
  std::vector<Request> out = varied_requests(tokenizer, 0);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].sampling = {.temperature = i % 4 < 2 ? 0 : 0.9f, .top_k = 20 + static_cast<int32_t>(i), .seed = i};
    out[i].top_logprobs = -1;
    out[i].max_tokens = 20 + 37 * static_cast<int64_t>(i);
    out[i].ignore_end = i % 2 == 0;
  }
  return out;
}

TEST_P(EngineModel, StepsThatBeginAheadChangeNothing) {
  for (const bool eager : {false, true}) {
    Served served(GetParam(), kTales,
                  {.context = 1024, .max_sequences = 6, .max_rows = kFewRows, .pages = 60}, false);
    const auto plain = plain_requests(served.tokenizer), mixed = varied_requests(served.tokenizer, 40);
    const auto plain_alone = one_by_one(served, plain), mixed_alone = one_by_one(served, mixed);
    test::AheadExecutable& executable = run_ahead(served, eager);
    expect_same_together(served, plain, plain_alone);
    EXPECT_GT(executable.ahead, executable.steps / 2) << "of " << executable.steps;
    expect_same_together(served, mixed, mixed_alone);
  }
}

TEST_P(EngineModel, StepsThatBeginAheadSurvivePreemption) {
  Served served(GetParam(), kTales, {.context = 512, .max_sequences = 4, .max_rows = kFewRows, .pages = 9},
                false);
  std::vector<Request> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(
        {.prompt = served.tokenizer.encode("Once there were " + std::to_string(i) + " hens and", true),
         .max_tokens = 230,
         .ignore_end = true});
    all.back().sampling.temperature = 0;
  }
  const auto alone = one_by_one(served, all);
  for (const bool eager : {false, true}) {
    Served again(GetParam(), kTales, served.options, false);
    const test::AheadExecutable& executable = run_ahead(again, eager);
    Engine engine(*again.executable, again.tokenizer, again.options);
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (const Request& request : all)
      engine.submit(request, listeners.emplace_back(std::make_shared<Recorder>()));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(answer_of(*listeners[i]), alone[i]) << i;
    ASSERT_TRUE(engine.drain(10));
    EXPECT_GT(engine.stats().preemptions_total, 0);
    EXPECT_GT(executable.ahead, 100);
  }
}

TEST_P(EngineModel, WhoeverComesIsAdmittedThoughStepsBeginAhead) {
  Served served(GetParam(), kTales, {.context = 4096, .max_sequences = 2, .max_rows = kFewRows, .pages = 130},
                false);
  run_ahead(served, true);
  Engine engine(*served.executable, served.tokenizer, served.options);
  Request endless{.prompt = {1, 2, 3}, .max_tokens = -1, .ignore_end = true};
  endless.sampling.temperature = 0;
  Request brief = endless;
  brief.max_tokens = 5;
  const auto first = std::make_shared<Recorder>();
  std::promise<void> began;
  first->also = [&](const TokenEvent& event) {
    if (event.index == 20) began.set_value();
  };
  const RequestId id = engine.submit(endless, first);
  began.get_future().wait();
  for (int i = 0; i < 3; ++i) {
    const auto second = std::make_shared<Recorder>();
    engine.submit(brief, second);
    EXPECT_EQ(second->wait().generated_tokens, 5);
  }
  engine.cancel(id);
  EXPECT_EQ(first->wait().finish, Finish::Cancelled);
}

TEST_P(EngineModel, ManyStreamsWithRandomCancels) {
  const int rounds = GetParam() == Stepping::Cpu ? 4 : 1;
  // As they are; with steps that begin ahead; with steps that pause.
  for (const int kind : {0, 1, 2}) {
    const bool ahead = kind == 1, pausing = kind == 2;
    Served served(GetParam(), kTales,
                  {.context = 512,
                   .max_sequences = 16,
                   .max_rows = 64,
                   .pages = 40,
                   .max_itl_ms = pausing ? 1.0 : 1000.0},
                  false, pausing ? 24 : 0);
    const auto kinds = ahead ? plain_requests(served.tokenizer) : varied_requests(served.tokenizer, 60);
    if (ahead) run_ahead(served, false);
    Engine engine(*served.executable, served.tokenizer, served.options);
    std::vector<std::thread> clients;
    std::atomic<int> ends = 0, cancelled = 0;
    for (uint32_t client = 0; client < 8; ++client) {
      clients.emplace_back([&, client] {
        std::mt19937 random(client);
        for (int round = 0; round < rounds; ++round) {
          std::vector<std::pair<RequestId, std::shared_ptr<Recorder>>> streams;
          for (int i = 0; i < 8; ++i) {
            Request request = kinds[random() % kinds.size()];
            request.prompt.resize(std::min<size_t>(request.prompt.size(), 400));
            request.client = std::to_string(client % 3);
            auto listener = std::make_shared<Recorder>();
            const RequestId id = engine.submit(std::move(request), listener);
            streams.emplace_back(id, std::move(listener));
          }
          for (const auto& [id, listener] : streams) {
            if (random() % 3 > 0) continue;
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
            engine.cancel(id);
          }
          for (const auto& [id, listener] : streams) {
            cancelled += listener->wait().finish == Finish::Cancelled;
            ends += listener->ends;
          }
        }
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(ends, 8 * rounds * 8);
    EXPECT_GT(cancelled, 0);
    ASSERT_TRUE(engine.drain(10));
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.used_pages, 0);
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages);
  }
}

}  // namespace
}  // namespace sluice::engine
