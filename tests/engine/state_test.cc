// An engine over a program with two paged caches and a state: whatever it does with them, an answer is what
// computing all of its tokens anew for each of them gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/clock.h"
#include "engine/batcher.h"
#include "support/ahead_executable.h"
#include "support/recorder.h"
#include "support/script_executable.h"
#include "support/two_caches.h"
#include "support/wrapped_executable.h"

namespace sluice::engine {
namespace {

using program::kPageRows;
using test::Recorder;
using Tokens = std::vector<int32_t>;

constexpr int64_t kContext = 512, kAnswer = 80;
constexpr int64_t kInterval = KvCache::kSnapshotPages * kPageRows;

enum class On : uint8_t { Ref, Cpu };

std::unique_ptr<program::Backend> make(On on, int threads = 1) {
  if (on == On::Ref) return backend::make_ref_backend();
  return backend::make_cpu_backend({.threads = threads});
}

/// The program, and an executable for an engine's options.
struct Served {
  const test::TwoCaches toy{5};
  text::Tokenizer tokenizer = test::byte_tokenizer();
  std::unique_ptr<program::Backend> backend;
  EngineOptions options;
  std::unique_ptr<program::Executable> executable;

  Served(On on, const EngineOptions& given, int64_t aside_rows = 0, int threads = 1)
      : backend(make(on, threads)), options(given) {
    executable = backend->compile(toy.program, toy.weights(),
                                  {.max_rows = options.max_rows,
                                   .max_outputs = options.outputs(),
                                   .cache_pages = options.pages,
                                   .batch_invariant = true,
                                   .aside_rows = aside_rows,
                                   .state_slots = options.state_slots});
  }
};

/// An executable that computes whole sequences from position 0, in one step, and knows nothing of steps
/// before.
class Recomputation {
 public:
  explicit Recomputation(On on)
      : backend_(make(on)),
        executable_(backend_->compile(toy_.program, toy_.weights(),
                                      {.max_rows = kContext,
                                       .max_outputs = kContext,
                                       .cache_pages = KvPool::pages_for(kContext),
                                       .batch_invariant = true})) {}

  /// The likeliest token behind each of an answer's but the last, and behind the prompt.
  Tokens likeliest(const Tokens& prompt, const Tokens& answer) {
    Tokens tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
    std::vector<int32_t> pages(static_cast<size_t>(KvPool::pages_for(kContext)));
    std::iota(pages.begin(), pages.end(), 0);
    Batch batch(kContext, 1, static_cast<int32_t>(pages.size()));
    batch.set_pages(0, pages);
    for (size_t at = 0; at < tokens.size(); ++at)
      batch.add(tokens[at], static_cast<int32_t>(at), 0, at + 1 >= prompt.size());
    Tokens out;
    for (const program::RowResult& row : program::run_step(*executable_, batch.step()).outputs)
      out.push_back(static_cast<int32_t>(std::ranges::max_element(row.logits) - row.logits.begin()));
    return out;
  }

 private:
  const test::TwoCaches toy_{5};
  std::unique_ptr<program::Backend> backend_;
  std::unique_ptr<program::Executable> executable_;
};

Tokens random_tokens(std::mt19937& random, int64_t count) {
  Tokens tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

/// Prompts that begin alike, of lengths around pages' ends, one of which repeats itself.
std::vector<Tokens> prompts() {
  std::mt19937 random(2);
  const Tokens opening = random_tokens(random, 150);
  std::vector<Tokens> out;
  for (const int64_t more : {0, 1, 30, 41, 42, 43, 107}) {
    out.push_back(opening);
    const Tokens rest = random_tokens(random, more);
    out.back().insert(out.back().end(), rest.begin(), rest.end());
  }
  out.push_back(random_tokens(random, 64));
  out.push_back(random_tokens(random, 1));
  Tokens again = random_tokens(random, 12);
  for (int i = 0; i < 4; ++i) again.insert(again.end(), again.begin(), again.begin() + 12);
  out.push_back(again);
  return out;
}

Request request_of(const Tokens& prompt) {
  Request request{.prompt = prompt, .max_tokens = kAnswer, .ignore_end = true};
  request.sampling.temperature = 0;
  return request;
}

class EngineStates : public testing::TestWithParam<On> {
 protected:
  /// Prompts `which` at once: their answers are what a recomputation gives. between: called before every
  /// step.
  int64_t expect_answers(
      Batcher& batcher, const std::vector<size_t>& which,
      const std::function<void(std::atomic<bool>&, std::atomic<bool>&)>& between = [](auto&, auto&) {}) {
    const std::vector<Tokens> all = prompts();
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (const size_t i : which) {
      listeners.push_back(std::make_shared<Recorder>());
      Request request = request_of(all[i]);
      if (const auto known = answers_.find(i); wrong_each_ > 0 && known != answers_.end())
        request.prediction = with_errors(known->second, wrong_each_);
      batcher.add(++last_id_, std::move(request), listeners.back(), now_ns());
    }
    std::atomic<bool> stop = false, pause = false;
    do {
      between(stop, pause);
      batcher.scheduler().check();
    } while (batcher.step(&stop, &pause));
    int64_t cached = 0;
    for (size_t i = 0; i < which.size(); ++i) {
      const Tokens& answer = answers_[which[i]] = listeners[i]->tokens;
      EXPECT_EQ(std::ssize(answer), kAnswer);
      EXPECT_EQ(answer, anew_.likeliest(all[which[i]], answer)) << "prompt " << which[i];
      EXPECT_EQ(listeners[i]->result.cached_tokens % kPageRows, 0) << "between pages there is no state";
      cached += listeners[i]->result.cached_tokens;
    }
    return cached;
  }
  /// Every so many-th token is another.
  static Tokens with_errors(Tokens tokens, size_t each) {
    for (size_t at = each; at < tokens.size(); at += each) tokens[at] ^= 1;
    return tokens;
  }
  static std::vector<size_t> all_of_them() {
    std::vector<size_t> which(prompts().size());
    std::iota(which.begin(), which.end(), 0);
    return which;
  }

  Recomputation anew_{GetParam()};
  std::map<size_t, Tokens> answers_;  ///< the last ones, by prompt
  /// Where an answer is known, it is predicted, but for every so many-th token; 0: it is not.
  size_t wrong_each_ = 0;
  RequestId last_id_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Backends, EngineStates, testing::Values(On::Ref, On::Cpu),
                         [](const auto& param) { return param.param == On::Ref ? "Ref" : "Cpu"; });

TEST_P(EngineStates, AreAsGoodAloneAsComputedAnew) {
  Served served(GetParam(), {.context = kContext, .max_sequences = 1, .max_rows = 64, .pages = 8}, 0, 3);
  for (const size_t i : std::to_array<size_t>({1, 5, 8})) {
    Batcher batcher(*served.executable, served.tokenizer, served.options);  // nothing is cached
    EXPECT_EQ(expect_answers(batcher, {i}), 0);
  }
}

TEST_P(EngineStates, AreRestoredBehindAPrefix) {
  Served served(GetParam(),
                {.context = kContext, .max_sequences = 1, .max_rows = 64, .pages = 60, .state_slots = 100});
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  EXPECT_EQ(expect_answers(batcher, {0}), 0);
  EXPECT_EQ(expect_answers(batcher, {0}), 128) << "behind the last whole page of the prompt";
  // The first that parts from it further back leaves a snapshot there for the next.
  EXPECT_EQ(expect_answers(batcher, {5}), 128);
  EXPECT_EQ(expect_answers(batcher, {5}), 192);
  EXPECT_EQ(expect_answers(batcher, {4, 8, 6}), 128 + 128);
  Tokens longer = prompts()[0];
  longer.insert(longer.end(), answers_.at(0).begin(), answers_.at(0).end());
  const auto listener = std::make_shared<Recorder>();
  batcher.add(1000, request_of(longer), listener, now_ns());
  while (batcher.step()) {
  }
  EXPECT_EQ(listener->result.cached_tokens, 192) << "answers leave snapshots at the ends of their pages";
  EXPECT_EQ(listener->tokens, anew_.likeliest(longer, listener->tokens));
}

// Whoever parts from a prefix where nobody left a snapshot leaves one there.
TEST_P(EngineStates, AreKeptWhereSequencesPart) {
  Served served(GetParam(),
                {.context = kContext, .max_sequences = 1, .max_rows = 512, .pages = 60, .state_slots = 100});
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  EXPECT_EQ(expect_answers(batcher, {6}), 0);  // 257 tokens: one step of 256, and one
  EXPECT_EQ(expect_answers(batcher, {3}), 0) << "128 are alike, and there is no state behind them";
  EXPECT_EQ(expect_answers(batcher, {2}), 128);
}

// An agent's turns: each begins with the one before, whose answer comes back whole or without its beginning
// (reasoning that the client leaves out). Long answers take no snapshots from the questions before them.
TEST_P(EngineStates, LetATurnReadNoMoreThanIsNew) {
  for (const int64_t left_out : {0, 40}) {
    Served served(GetParam(),
                  {.context = 1500, .max_sequences = 1, .max_rows = 64, .pages = 24, .state_slots = 4});
    Batcher batcher(*served.executable, served.tokenizer, served.options);
    std::mt19937 random(7);
    Tokens prompt = random_tokens(random, 150);
    for (int turn = 0, known = 0; turn < 4; ++turn) {
      const auto listener = std::make_shared<Recorder>();
      Request request = request_of(prompt);
      request.max_tokens = 200;
      batcher.add(turn + 1, request, listener, now_ns());
      do batcher.scheduler().check();
      while (batcher.step());
      EXPECT_GE(listener->result.cached_tokens, known / kPageRows * kPageRows) << "turn " << turn;
      const Tokens& answer = listener->tokens;
      ASSERT_EQ(answer.size(), 200u);
      // What is known of the next prompt: all but the answer's last token, or up to where it is another.
      known = static_cast<int>(std::ssize(prompt) + (left_out > 0 ? 0 : std::ssize(answer)) - 1);
      prompt.insert(prompt.end(), answer.begin() + left_out, answer.end());
      const Tokens more = random_tokens(random, 37);
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
  }
}

TEST_P(EngineStates, AreTheSameBesideNeighbours) {
  std::map<int64_t, int64_t> cached;  // by slots
  for (const int64_t slots : {12, 40}) {
    Served served(
        GetParam(),
        {.context = kContext, .max_sequences = 6, .max_rows = 50, .pages = 60, .state_slots = slots});
    Batcher batcher(*served.executable, served.tokenizer, served.options);
    EXPECT_GT(expect_answers(batcher, all_of_them()), 0);
    cached[slots] = expect_answers(batcher, all_of_them());
  }
  EXPECT_GE(cached[40], 5 * 128);
  EXPECT_LT(cached[12], cached[40]) << "with fewer slots snapshots are given up, and prefixes read again";
}

TEST_P(EngineStates, AreTheSameAfterPreemption) {
  Served served(GetParam(),
                {.context = kContext, .max_sequences = 6, .max_rows = 50, .pages = 10, .state_slots = 12});
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  expect_answers(batcher, all_of_them());
  expect_answers(batcher, all_of_them());
  EXPECT_GT(batcher.scheduler().preemptions(), 0);
  EXPECT_EQ(batcher.scheduler().cache().available(), 10);
}

TEST_P(EngineStates, AreTheSameWhenStepsAreGivenUpOrPause) {
  Served served(GetParam(),
                {.context = kContext,
                 .max_sequences = 6,
                 .max_rows = 200,
                 .pages = 60,
                 .state_slots = 24,
                 .max_itl_ms = 0.1},
                16);
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  int step = 0;
  const auto between = [&step](std::atomic<bool>& stop, std::atomic<bool>& pause) {
    stop = ++step % 101 == 0;  // a long step has fewer places to pause at
    pause = true;
  };
  expect_answers(batcher, all_of_them(), between);
  expect_answers(batcher, all_of_them(), between);
}

// Rows that turn out to be wrong, drafts' or those of steps ahead, leave nothing in a state.
TEST_P(EngineStates, AreTheSameWithDrafts) {
  for (const int64_t rows : {8, 64}) {
    Served served(GetParam(), {.context = kContext,
                               .max_sequences = 2,
                               .max_rows = rows,
                               .pages = 20,
                               .draft_tokens = 7,
                               .timeless = true});
    Batcher batcher(*served.executable, served.tokenizer, served.options);
    for (const size_t wrong_each : std::to_array<size_t>({0, 4, 7, 50})) {
      wrong_each_ = wrong_each;
      expect_answers(batcher, {9, 5});
    }
    EngineStats stats;
    batcher.snapshot(stats);
    EXPECT_GT(stats.accepted_tokens_total, 50);
    EXPECT_GT(stats.draft_tokens_total, stats.accepted_tokens_total) << "none was wrong";
  }
}

// Predictions that are right but for some tokens: wherever they go wrong, at pages' ends too.
TEST_P(EngineStates, AreTheSameWhereDraftsGoWrong) {
  Served served(GetParam(), {.context = kContext,
                             .max_sequences = 1,
                             .max_rows = 64,
                             .pages = 60,
                             .state_slots = 20,
                             .draft_tokens = 7,
                             .timeless = true});
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  for (const size_t i : std::to_array<size_t>({0, 4, 7})) {
    expect_answers(batcher, {i});
    const Tokens answer = answers_.at(i);
    for (const size_t wrong_each : std::to_array<size_t>({3, 5, 9, 100})) {
      const auto listener = std::make_shared<Recorder>();
      Request request = request_of(prompts()[i]);
      request.prediction = with_errors(answer, wrong_each);
      batcher.add(1000 + 10 * i + wrong_each, request, listener, now_ns());
      do batcher.scheduler().check();
      while (batcher.step());
      EXPECT_EQ(listener->tokens, answer) << "prompt " << i << ", every " << wrong_each;
      EXPECT_GT(listener->result.accepted_tokens, 0);
      if (wrong_each == 100) {
        EXPECT_GT(listener->result.accepted_tokens, kAnswer / 2);
      }
    }
    // What answers leave at their pages' ends is the same, too.
    Tokens longer = prompts()[i];
    longer.insert(longer.end(), answer.begin(), answer.end());
    const auto listener = std::make_shared<Recorder>();
    batcher.add(2000 + i, request_of(longer), listener, now_ns());
    while (batcher.step()) {
    }
    EXPECT_GE(listener->result.cached_tokens, (std::ssize(longer) - 1) / kPageRows * kPageRows - kPageRows);
    EXPECT_EQ(listener->tokens, anew_.likeliest(longer, listener->tokens));
  }
}

TEST_P(EngineStates, AreTheSameAfterPreemptionWithDrafts) {
  Served served(GetParam(), {.context = kContext,
                             .max_sequences = 4,
                             .max_rows = 50,
                             .pages = 10,
                             .state_slots = 12,
                             .draft_tokens = 7,
                             .timeless = true});
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  for (const size_t wrong_each : std::to_array<size_t>({0, 5, 20})) {
    wrong_each_ = wrong_each;
    expect_answers(batcher, {9, 9, 5, 6, 9, 0});
  }
  EngineStats stats;
  batcher.snapshot(stats);
  EXPECT_GT(stats.accepted_tokens_total, 0);
  EXPECT_GT(batcher.scheduler().preemptions(), 0);
}

TEST_P(EngineStates, AreTheSameWithStepsAhead) {
  for (const int64_t slots : {4, 6, 12}) {
    for (const bool eager : {false, true}) {
      for (const int64_t drafts : {0, 7}) {
        Served served(GetParam(), {.context = kContext,
                                   .max_sequences = 2,
                                   .max_rows = 64,
                                   .pages = 20,
                                   .state_slots = slots,
                                   .draft_tokens = drafts,
                                   .timeless = true});
        auto ahead = std::make_unique<test::AheadExecutable>(std::move(served.executable), eager);
        const test::AheadExecutable& steps = *ahead;
        served.executable = std::move(ahead);
        Batcher batcher(*served.executable, served.tokenizer, served.options);
        for (const size_t wrong_each : std::to_array<size_t>({0, 6})) {
          wrong_each_ = wrong_each;
          expect_answers(batcher, {9, 9, 0});
          expect_answers(batcher, {5, 4, 5});
        }
        EXPECT_EQ(steps.ahead > 0, slots >= 6) << slots << " slots: two sequences need three each";
        EngineStats stats;
        batcher.snapshot(stats);
        EXPECT_EQ(stats.draft_tokens_total > 0, drafts > 0);
      }
    }
  }
}

TEST_P(EngineStates, NeedNoMoreThanTheObligatory) {
  Served served(GetParam(), {.context = kContext, .max_sequences = 2, .max_rows = 64, .pages = 20});
  served.executable = std::make_unique<test::MinimalExecutable>(std::move(served.executable));
  Batcher batcher(*served.executable, served.tokenizer, served.options);
  expect_answers(batcher, {0, 7, 8});
}

/// Computes all of a sequence's rows but the last, in steps of so many, and ends it; gives how many it took
/// over.
int64_t run_through(KvCache& cache, const Tokens& tokens, int64_t step_rows) {
  SequencePages pages = cache.open(tokens);
  const int64_t taken = pages.rows;
  EXPECT_TRUE(cache.grow(pages, std::ssize(tokens)));
  while (pages.rows < std::ssize(tokens) - 1) {
    const int64_t end = std::min(pages.rows + step_rows, std::ssize(tokens) - 1);
    cache.computed(pages, tokens, cache.end_of_step(pages, std::ssize(tokens), end));
  }
  cache.close(pages, tokens);
  cache.check({});
  return taken;
}

// Wherever a prompt parts from one that was read, no more than an interval of what both have is read again,
// with as many slots as one sequence has by default.
TEST(KvCacheStates, APrefixIsReadAgainByAnIntervalAtMost) {
  std::mt19937 random(11);
  const Tokens first = random_tokens(random, 4 * kInterval + 900);
  for (const int64_t step_rows : {512, 100000}) {
    for (const int64_t common : {int64_t{40}, kInterval - 1, kInterval + 64, 3 * kInterval + 777,
                                 4 * kInterval + 500, std::ssize(first) - 1}) {
      KvCache cache(400, StatePool::wanted_slots(1));
      EXPECT_EQ(run_through(cache, first, step_rows), 0);
      Tokens second(first.begin(), first.begin() + common);
      second.push_back(first[static_cast<size_t>(common)] ^ 1);
      const Tokens more = random_tokens(random, 100);
      second.insert(second.end(), more.begin(), more.end());
      const int64_t taken = run_through(cache, second, step_rows);
      EXPECT_LE(taken, common);
      EXPECT_GT(taken, common - kInterval) << common << " tokens alike";
      // Where they part there is a snapshot from now on.
      second.resize(static_cast<size_t>(common));
      second.insert(second.end(), more.rbegin(), more.rend());
      EXPECT_EQ(run_through(cache, second, step_rows), common / kPageRows * kPageRows) << common;
    }
  }
}

/// An agent's conversations, turn by turn, as an engine with one place has them.
class Conversations {
 public:
  explicit Conversations(int64_t slots) : cache_(6000, slots) {}

  /// A turn of the conversation: some tokens more are asked, and some answered. Gives how many tokens that
  /// somebody has computed before are computed again.
  int64_t turn(Tokens& conversation, int64_t asked, int64_t answered) {
    append(conversation, asked);
    SequencePages pages = cache_.open(conversation);
    const int64_t again = pages.known - pages.rows;
    EXPECT_TRUE(cache_.grow(pages, std::ssize(conversation) + answered));
    while (pages.rows < std::ssize(conversation)) {
      const int64_t end = std::min(pages.rows + 2048, std::ssize(conversation));
      cache_.computed(pages, conversation, cache_.end_of_step(pages, std::ssize(conversation), end));
    }
    for (int64_t i = 0; i < answered; ++i) {
      append(conversation, 1);
      if (i + 1 < answered) cache_.computed(pages, conversation, std::ssize(conversation));
    }
    cache_.close(pages, conversation);
    cache_.check({});
    return again;
  }
  /// Turns of some hundred to some thousand tokens, until there are so many.
  void go_on(Tokens& conversation, int64_t until) {
    while (std::ssize(conversation) < until) {
      const int64_t asked = 200 + static_cast<int64_t>(random_() % 2500);
      EXPECT_LE(turn(conversation, asked, 50 + static_cast<int64_t>(random_() % 600)), kInterval);
    }
  }
  void append(Tokens& tokens, int64_t count) {
    const Tokens more = random_tokens(random_, count);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }

 private:
  KvCache cache_;
  std::mt19937 random_{13};
};

// Conversations of 66,000 tokens with the same tools before them: the first that begins like another one
// leaves a snapshot where they part, and no later one reads the tools again, however long those between were.
TEST(KvCacheStates, ToolsBeforeLongConversationsAreReadTwice) {
  for (const int64_t sequences : {1, 32}) {
    Conversations agents(StatePool::wanted_slots(sequences));
    Tokens tools;
    agents.append(tools, 10000);
    for (int conversation = 0; conversation < 5; ++conversation) {
      Tokens tokens = tools;
      const int64_t again = agents.turn(tokens, 700, 300);
      EXPECT_LE(again, conversation == 1 ? 10000 : 0) << sequences << " sequences, " << conversation;
      agents.go_on(tokens, 66000);
    }
  }
}

// Several conversations of 66,000 tokens in turns: each goes on at its end, whatever the others have taken.
TEST(KvCacheStates, ConversationsInTurnsGoOnAtTheirEnds) {
  Conversations agents(StatePool::wanted_slots(4));
  std::vector<Tokens> all(4);
  for (int64_t until = 3000; until <= 66000; until += 3000)
    for (Tokens& tokens : all) agents.go_on(tokens, until);
}

// A turn that is asked anew, with another end, and an answer whose beginning does not come back.
TEST(KvCacheStates, EditsOfTheLastTurnsReadAnIntervalAgainAtMost) {
  Conversations agents(StatePool::wanted_slots(1));
  Tokens tokens, before;
  for (int turn = 0; std::ssize(tokens) < 66000; ++turn) {
    if (turn % 4 == 3) tokens = before;
    before = tokens;
    EXPECT_LE(agents.turn(tokens, 300 + 700 * (turn % 4), 400), kInterval) << "turn " << turn;
    if (turn % 2 == 0) tokens.erase(tokens.end() - 400, tokens.end() - 360);
  }
}

}  // namespace
}  // namespace sluice::engine
