// Drafts by a block of multi-token prediction: that they are what the block says, and that no answer depends
// on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "engine/batcher.h"
#include "engine/draft_pace.h"
#include "engine/token_predictor.h"
#include "model/model.h"
#include "support/ahead_executable.h"
#include "support/golden.h"
#include "support/predicted.h"
#include "support/recorder.h"
#include "support/script_executable.h"
#include "support/wrapped_executable.h"
#include "text/constraint.h"

namespace sluice::engine {
namespace {

using Tokens = std::vector<int32_t>;
using test::Recorder;

TEST(Prediction, LearnsHowOftenItIsRight) {
  Prediction right, wrong;
  const double hoped = right.chances()[0];
  Tokens tokens = {1};
  for (int i = 0; i < 200; ++i) {
    right.learn(tokens);
    wrong.learn(tokens);
    const auto next = static_cast<int32_t>(i);
    right.add(next), right.add(next + 1000);
    wrong.add(next + 1);
    tokens.push_back(next);
    tokens.push_back(i % 2 == 0 ? next + 1000 : 7);
  }
  EXPECT_GT(right.chances()[0], 0.99);
  EXPECT_NEAR(right.chances()[1], 0.5, 0.2);
  EXPECT_LT(wrong.chances()[0], 0.01);
  for (int i = 0; i < 2000; ++i) wrong.learn(tokens);
  EXPECT_NEAR(wrong.chances()[0], hoped, 0.01) << "nothing was drafted for long: worth a try";
}

TEST(DraftPace, RoundsOfPredictionsCost) {
  DraftPace pace;
  for (int64_t rows = 1; rows <= 8; ++rows) pace.observe(rows, 1.0);
  const std::vector<double> likely(3, 0.8);
  const auto length = [&](bool predicted, double round) {
    Draft drafts[] = {{.chances = likely, .predicted = predicted}};
    pace.choose(drafts, 8, false, round);
    return drafts[0].length;
  };
  EXPECT_EQ(length(true, 0), 3);
  EXPECT_EQ(length(true, 0.1), 3);
  EXPECT_EQ(length(true, 0.9), 0);
  EXPECT_EQ(length(false, 0.9), 3) << "what is looked up costs nothing";
}

using Pair = test::ModelWithBlock;

/// Lets an answer be nothing but these tokens.
class Only : public text::TokenConstraint {
 public:
  explicit Only(Tokens tokens) : tokens_(std::move(tokens)) {}
  bool allowed(std::span<uint32_t> bits) override {
    std::ranges::fill(bits, 0);
    if (!may_end()) bits[static_cast<size_t>(tokens_[at_]) / 32] = 1u << (tokens_[at_] % 32);
    return true;
  }
  bool accept(int32_t token) override { return !may_end() && token == tokens_[at_++]; }
  bool may_end() const override { return at_ == tokens_.size(); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Only>(*this); }

 private:
  Tokens tokens_;
  size_t at_ = 0;
};

/// Notes the tokens that were drafted: those of outputs behind one of the same sequence.
class Watched : public test::WrappedExecutable {
 public:
  using WrappedExecutable::WrappedExecutable;
  program::Facts facts() const override { return of_->facts(); }
  program::Ticket submit(const program::Step& step) override {
    for (size_t i = 1; i < step.input.output_rows.size(); ++i) {
      const auto row = static_cast<size_t>(step.input.output_rows[i]);
      const auto before = static_cast<size_t>(step.input.output_rows[i - 1]);
      if (step.input.sequences[row] == step.input.sequences[before])
        drafted[step.input.positions[row]] = step.input.tokens[row];
    }
    return of_->submit(step);
  }
  program::StepResult collect(program::Ticket ticket) override { return of_->collect(ticket); }
  std::map<int32_t, int32_t> drafted;  ///< by position
};

// However a prompt is cut into steps, its rows have gone through the block when the answer begins: the first
// token of each draft is the likeliest of the plain model's logits (tools/oracles/logits.py).
TEST(TokenPredictor, DraftsWhatThePlainModelFindsLikeliest) {
  const test::Golden golden = test::oracle_case("glm-mtp-experts", "glm-mtp-experts");
  const auto backend = backend::make_ref_backend();
  const text::Tokenizer tokenizer = test::byte_tokenizer();
  for (const int64_t rows : {3, 16, 64}) {
    Pair pair(*backend, golden.model, {.max_rows = rows, .max_outputs = 2, .cache_pages = 2});
    Watched watched(std::move(pair.trunk));
    Batcher batcher(watched, tokenizer,
                    {.context = 128,
                     .max_sequences = 1,
                     .max_rows = rows,
                     .pages = 2,
                     .draft_tokens = 1,
                     .look_up = false,
                     .predictor = pair.block.get(),
                     .timeless = true});
    const Tokens prompt(golden.tokens.begin(), golden.tokens.begin() + 40);
    const Tokens answer(golden.tokens.begin() + 40, golden.tokens.end());
    const auto listener = std::make_shared<Recorder>();
    batcher.add(
        1, {.prompt = prompt, .max_tokens = std::ssize(answer), .constraint = std::make_shared<Only>(answer)},
        listener, 1);
    while (batcher.step()) {
    }
    EXPECT_EQ(listener->tokens, answer);
    ASSERT_GT(watched.drafted.size(), 5u) << rows;
    for (const auto& [position, token] : watched.drafted) {
      const auto row = golden.logits.begin() + (position - 2) * golden.vocabulary;
      EXPECT_EQ(token, std::max_element(row, row + golden.vocabulary) - row) << position << ", " << rows;
    }
  }
}

// Two answers leave no room for drafts and their steps begin ahead; when one has ended, the other's rows have
// gone to the block all the same: what it drafts then is the likeliest by a block that has seen the whole
// text.
TEST(TokenPredictor, StepsAheadHandOnTheirHiddenStates) {
  const std::string path = test::oracle_case("glm-mtp-experts", "glm-mtp-experts").model;
  const auto backend = backend::make_ref_backend();
  const text::Tokenizer tokenizer = test::byte_tokenizer();
  for (const bool eager : {false, true}) {
    Pair pair(*backend, path, {.max_rows = 16, .max_outputs = 2, .cache_pages = 4});
    auto ahead = std::make_unique<test::AheadExecutable>(std::move(pair.trunk), eager);
    const test::AheadExecutable& steps = *ahead;
    Watched watched(std::move(ahead));
    Batcher batcher(watched, tokenizer,
                    {.context = 128,
                     .max_sequences = 2,
                     .max_rows = 16,
                     .pages = 4,
                     .draft_tokens = 1,
                     .look_up = false,
                     .predictor = pair.block.get(),
                     .timeless = true});
    const std::vector<Tokens> prompts = {{5, 9, 13, 17}, {40, 3, 31, 22, 8, 50, 11}};
    std::vector<std::shared_ptr<Recorder>> answers;
    for (const Tokens& prompt : prompts) {
      answers.push_back(std::make_shared<Recorder>());
      Request request{.prompt = prompt, .max_tokens = answers.size() == 1 ? 20 : 60, .ignore_end = true};
      request.sampling.temperature = 0;
      batcher.add(answers.size(), std::move(request), answers.back(), 1);
    }
    while (batcher.step()) {
    }
    EXPECT_GT(steps.ahead, 8) << "while both ran";
    ASSERT_GT(watched.drafted.size(), 10u) << "afterwards";
    Tokens text = prompts[1];
    text.insert(text.end(), answers[1]->tokens.begin(), answers[1]->tokens.end());
    const auto logits = test::predicted(path, text, *backend, *backend, std::ssize(text));
    const size_t columns = logits.size() / (text.size() - 1);
    for (const auto& [position, token] : watched.drafted) {
      if (position >= std::ssize(text)) continue;
      const auto row = logits.begin() + (position - 2) * static_cast<std::ptrdiff_t>(columns);
      const auto known = row + static_cast<std::ptrdiff_t>(std::min<size_t>(columns, tokenizer.size()));
      EXPECT_EQ(token, std::max_element(row, known) - row) << position;
    }
  }
}

/// Says of drafts in turns that they are right and that they are not.
TEST(TokenPredictor, ABenchmarkMaySayWhichDraftsAreRight) {
  const std::string path = test::oracle_case("glm-mtp", "glm-mtp").model;
  const auto backend = backend::make_ref_backend();
  const text::Tokenizer tokenizer = test::byte_tokenizer();
  for (const bool block : {false, true}) {
    Pair pair(*backend, path, {.max_rows = 8, .max_outputs = 2, .cache_pages = 2});
    Batcher batcher(*pair.trunk, tokenizer,
                    {.context = 128,
                     .max_sequences = 1,
                     .max_rows = 8,
                     .pages = 2,
                     .draft_tokens = 1,
                     .look_up = false,
                     .predictor = block ? pair.block.get() : nullptr,
                     .timeless = true});
    const auto answer = std::make_shared<Recorder>();
    Request request{.prompt = {5, 9, 13}, .max_tokens = 61, .ignore_end = true};
    request.accepts = [turn = 0]() mutable { return ++turn % 3 != 0; };
    batcher.add(1, std::move(request), answer, 1);
    while (batcher.step()) {
    }
    EXPECT_EQ(answer->tokens.size(), 61u);
    EXPECT_GT(answer->result.draft_tokens, 20);
    EXPECT_NEAR(static_cast<double>(answer->result.accepted_tokens) /
                    static_cast<double>(answer->result.draft_tokens),
                2.0 / 3, 0.05);
  }
}

/// Requests of tokens below 64 with all that may draw on a text.
std::vector<Request> requests() {
  std::mt19937 random(7);
  std::vector<Request> out;
  for (int i = 0; i < 10; ++i) {
    Request request{.max_tokens = 20 + 7 * i, .ignore_end = true};
    const auto length = static_cast<size_t>(i < 2 ? 90 : 5 + 9 * i);
    std::mt19937 own(i < 2 ? 3 : 100 + i);  // the first two begin alike
    while (request.prompt.size() < length) request.prompt.push_back(static_cast<int32_t>(own() % 64));
    request.sampling.seed = 40 + static_cast<uint64_t>(i);
    request.sampling.temperature = i % 3 == 0 ? 0 : 0.8f;
    if (i == 4) request.sampling.repeat_penalty = 1.3f;
    if (i == 5) request.sampling.top_p = 0.6f, request.sampling.min_p = 0.05f;
    if (i == 6) request.top_logprobs = 3;
    if (i == 7) request.stops = {"#", "\x12"};
    if (i == 8) {
      Tokens text;
      for (int k = 0; k < 76; ++k) text.push_back(static_cast<int32_t>(random() % 64));
      request.constraint = std::make_shared<Only>(text);
    }
    if (i == 9) request.use_drafts = false;
    out.push_back(std::move(request));
  }
  return out;
}

struct Answer {
  std::string text;
  Tokens tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};
void PrintTo(const Answer& answer, std::ostream* out) { *out << testing::PrintToString(answer.tokens); }

/// All of them at once; the one that is cancelled ends after so many tokens.
std::vector<Answer> answers(program::Executable& trunk, const EngineOptions& options, EngineStats& stats,
                            int64_t cancelled_after = -1) {
  const text::Tokenizer tokenizer = test::byte_tokenizer();
  Batcher batcher(trunk, tokenizer, options);
  std::vector<std::shared_ptr<Recorder>> listeners;
  for (Request& request : requests()) {
    if (request.constraint != nullptr) request.constraint = request.constraint->clone();
    listeners.push_back(std::make_shared<Recorder>());
    batcher.add(listeners.size(), std::move(request), listeners.back(), 1);
  }
  bool cancels = cancelled_after >= 0;
  for (int steps = 0; batcher.step(); ++steps) {
    EXPECT_LT(steps, 5000);
    batcher.scheduler().check();
    if (cancels && std::ssize(listeners[3]->tokens) >= cancelled_after) {
      batcher.cancel(4);
      cancels = false;
    }
  }
  batcher.snapshot(stats);
  std::vector<Answer> out;
  for (size_t i = 0; i < listeners.size(); ++i) {
    if (cancelled_after >= 0 && i == 3) continue;
    out.push_back({listeners[i]->text, listeners[i]->tokens, listeners[i]->logprobs});
  }
  return out;
}

/// A block in whose place a table says what comes next, right as often as the table is.
class Guesser : public test::WrappedExecutable {
 public:
  Guesser(std::unique_ptr<program::Executable> of, std::map<int32_t, int32_t> next)
      : WrappedExecutable(std::move(of)), next_(std::move(next)) {}
  program::Facts facts() const override { return of_->facts(); }
  program::Ticket submit(const program::Step& step) override {
    const program::Ticket ticket = of_->submit(step);
    const program::StepResult given = of_->collect(ticket);
    rows_.assign(given.outputs.begin(), given.outputs.end());
    logits_.assign(rows_.size() * 64, 0);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto logits = std::span(logits_).subspan(i * 64, 64);
      const int32_t token = step.input.tokens[static_cast<size_t>(step.input.output_rows[i])];
      if (const auto found = next_.find(token); found != next_.end())
        logits[static_cast<size_t>(found->second)] = 1;
      rows_[i].logits = logits;
    }
    return ticket;
  }
  program::StepResult collect(program::Ticket) override { return {.outputs = rows_}; }

 private:
  std::map<int32_t, int32_t> next_;
  std::vector<program::RowResult> rows_;
  std::vector<float> logits_;
};

// Alone with the block, and beside what is looked up; with few pages, so that some give way; in long steps
// and those aside; with one that is cancelled.
TEST(TokenPredictor, NoAnswerDependsOnDrafts) {
  const std::string path = test::made_file("tools/oracles/models.py", "glm-mtp", "glm-mtp.gguf");
  const auto backend = backend::make_cpu_backend({.threads = 2});
  EngineOptions options{.context = 256, .max_sequences = 4, .max_rows = 11, .pages = 24};
  options.timeless = true;
  Pair plain(*backend, path, {.max_rows = 11, .max_outputs = 8, .cache_pages = 24});
  EngineStats stats;
  const std::vector<Answer> alone = answers(*plain.trunk, options, stats);
  EXPECT_EQ(stats.draft_tokens_total, 0);
  // What came most often behind a token, over all answers.
  std::map<int32_t, std::map<int32_t, int>> counts;
  for (const Answer& answer : alone)
    for (size_t i = 1; i < answer.tokens.size(); ++i) ++counts[answer.tokens[i - 1]][answer.tokens[i]];
  std::map<int32_t, int32_t> next;
  for (const auto& [token, after] : counts)
    next[token] = std::ranges::max_element(after, {}, [](const auto& one) { return one.second; })->first;

  int32_t gave_way = 0;
  for (const bool guesses : {false, true}) {
    for (const int64_t drafts : {4, 7}) {
      for (const auto& [pages, aside] : {std::pair<int64_t, int64_t>{24, 10}, {5, 0}}) {
        SCOPED_TRACE(fmt::format("{} {} drafts, {} pages, {} rows aside", guesses ? "guessed" : "predicted",
                                 drafts, pages, aside));
        Pair pair(*backend, path,
                  {.max_rows = 11, .max_outputs = 8, .cache_pages = pages, .aside_rows = aside});
        options.draft_tokens = drafts;
        options.pages = pages;
        options.look_up = drafts == 7;
        options.max_itl_ms = aside > 0 ? 0.1 : 1000;
        if (guesses) pair.block = std::make_unique<Guesser>(std::move(pair.block), next);
        options.predictor = pair.block.get();
        EXPECT_EQ(answers(*pair.trunk, options, stats), alone);
        EXPECT_GT(stats.draft_tokens_total, stats.accepted_tokens_total) << "some were wrong";
        if (guesses) {
          EXPECT_GT(stats.accepted_tokens_total, 10);
        }
        gave_way += static_cast<int32_t>(stats.preemptions_total);
        std::vector<Answer> others = alone;
        others.erase(others.begin() + 3);
        EXPECT_EQ(answers(*pair.trunk, options, stats, 5), others);
      }
    }
  }
  EXPECT_GT(gave_way, 0) << "there are pages for all";
}

// The same of an executable whose steps begin ahead, some of whose draws are wrong.
TEST(TokenPredictor, NoAnswerDependsOnDraftsBesideStepsAhead) {
  const std::string path = test::made_file("tools/oracles/models.py", "glm-mtp", "glm-mtp.gguf");
  const auto backend = backend::make_cpu_backend({.threads = 1});
  EngineOptions options{.context = 256, .max_sequences = 4, .max_rows = 11, .pages = 24};
  options.timeless = true;
  Pair plain(*backend, path, {.max_rows = 11, .max_outputs = 8, .cache_pages = 24});
  EngineStats stats;
  const std::vector<Answer> alone = answers(*plain.trunk, options, stats);
  options.draft_tokens = 3;
  for (const bool eager : {false, true}) {
    Pair pair(*backend, path, {.max_rows = 11, .max_outputs = 8, .cache_pages = 24});
    test::AheadExecutable ahead(std::move(pair.trunk), eager);
    options.predictor = pair.block.get();
    EXPECT_EQ(answers(ahead, options, stats), alone);
    EXPECT_GT(stats.draft_tokens_total, stats.accepted_tokens_total);
    EXPECT_GT(ahead.ahead, 10);
    std::vector<Answer> others = alone;
    others.erase(others.begin() + 3);
    EXPECT_EQ(answers(ahead, options, stats, 5), others);
  }
}

}  // namespace
}  // namespace sluice::engine
