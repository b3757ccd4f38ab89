// The engine's thread: how requests end, whoever ends them. Over an executable whose logits are a script.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <semaphore>
#include <set>
#include <thread>

#include "base/clock.h"
#include "engine/batcher.h"
#include "support/recorder.h"
#include "support/script_executable.h"
#include "text/constraint.h"

namespace sluice::engine {
namespace {

using test::byte_tokenizer;
using test::Recorder;

/// Says the same letter forever, and counts. `hold` makes it wait before each step until somebody lets it go.
class Endless : public test::Script {
 public:
  Endless() : Script("") {}
  void run(const program::Step& step, Said& said) override {
    if (hold) go.acquire();
    if (fails) throw Error("the device is gone");
    rows += step.input.rows();
    for (int64_t i = 0; i < step.input.outputs(); ++i)
      said.logits[static_cast<size_t>(i) * 257 + 'a'] = 50.0f;
  }
  std::atomic<bool> hold = false, fails = false;
  std::atomic<int64_t> rows = 0;
  std::counting_semaphore<1000> go{0};
};

constexpr EngineOptions kOptions{
    .context = 1024, .max_sequences = 4, .max_rows = 32, .pages = 64, .max_waiting = 8};

/// An engine on such an executable.
template <typename Executable>
struct On {
  Executable executable;
  text::Tokenizer tokenizer = byte_tokenizer();
  Engine engine;

  explicit On(const EngineOptions& options = kOptions) : engine(executable, tokenizer, options) {}
  std::pair<RequestId, std::shared_ptr<Recorder>> submit(Request request) {
    request.sampling.temperature = 0;
    auto listener = std::make_shared<Recorder>();
    const RequestId id = engine.submit(std::move(request), listener);
    return {id, listener};
  }
};

using Running = On<Endless>;

Request letters(int64_t prompt, int64_t answer) {
  return {.prompt = std::vector<int32_t>(static_cast<size_t>(prompt), 'x'), .max_tokens = answer};
}

TEST(Engine, AnswersAndCounts) {
  Running running;
  const auto [id, listener] = running.submit(letters(100, 5));
  const Result& result = listener->wait();
  EXPECT_EQ(listener->text, "aaaaa");
  EXPECT_EQ(result.finish, Finish::Length);
  EXPECT_EQ(result.prompt_tokens, 100);
  EXPECT_EQ(result.generated_tokens, 5);
  EXPECT_EQ(running.executable.rows, 104) << "the last token needs no row";
  const auto [again, second] = running.submit(letters(100, 5));
  EXPECT_GT(again, id);
  EXPECT_EQ(second->wait().cached_tokens, 99);
  EXPECT_TRUE(running.engine.drain(10));
  const EngineStats stats = running.engine.stats();
  EXPECT_EQ(stats.requests_total, 2);
  EXPECT_EQ(stats.prompt_tokens_total, 200);
  EXPECT_EQ(stats.cached_tokens_total, 99);
  EXPECT_EQ(stats.prefix_hits_total, 1);
  EXPECT_EQ(stats.generated_tokens_total, 10);
  EXPECT_EQ(stats.finished_total[static_cast<size_t>(Finish::Length)], 2);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.used_pages, 0);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages);
  EXPECT_EQ(stats.slots.size(), 4u);
}

/// Reads the engine's stats when it hears its end.
class Counting : public Recorder {
 public:
  explicit Counting(const Engine& engine) : engine_(engine) {}
  void on_end(RequestId id, std::string_view rest, const Result& how) override {
    stats = engine_.stats();
    Recorder::on_end(id, rest, how);
  }
  EngineStats stats;

 private:
  const Engine& engine_;
};

TEST(Engine, WhoHearsItsEndFindsItselfGoneFromTheStats) {
  Running running;
  running.executable.hold = true;
  std::vector<std::shared_ptr<Counting>> listeners;
  for (const Request& request : {letters(100, 3), letters(90, 3), letters(80, -1)}) {
    listeners.push_back(std::make_shared<Counting>(running.engine));
    const RequestId id = running.engine.submit(request, listeners.back());
    if (request.max_tokens < 0) running.engine.cancel(id);
  }
  running.executable.hold = false;
  running.executable.go.release(100);
  int64_t ended = 0, left = 0;
  for (const auto& listener : listeners) {
    listener->wait();
    ended += std::accumulate(listener->stats.finished_total.begin(), listener->stats.finished_total.end(),
                             int64_t{0});
    left += listener->stats.running + listener->stats.waiting;
  }
  EXPECT_EQ(ended, 1 + 2 + 3);
  EXPECT_EQ(left, 2 + 1 + 0);
}

/// Says l by a row's likeliest tokens where these are wanted, and counts how often they were; where logits
/// are, r, or beside others' likeliest tokens the output's number. Then all rows give logits, unless it
/// `mixes`.
class Finder : public test::Script {
 public:
  explicit Finder(bool mixes = false) : Script(""), mixes_(mixes) {}
  program::Facts facts() const override { return {.top = true}; }
  program::Ticket submit(const program::Step& step) override {
    const auto count = static_cast<size_t>(step.input.outputs());
    const auto whole =
        static_cast<size_t>(std::ranges::count_if(step.wants, [](const auto& want) { return want.logits; }));
    rows_.assign(count, {});
    logits_.assign(count * 257, 0.0f);
    for (size_t i = 0; i < count; ++i) {
      if (step.wants[i].logits || (whole > 0 && !mixes_)) {
        logits_[i * 257 + (mixes_ && whole < count ? '0' + i : 'r')] = 50.0f, ++whole_rows;
        rows_[i].logits = std::span(logits_).subspan(i * 257, 257);
      } else {
        EXPECT_TRUE(step.wants[i].top);
        rows_[i].top = kLetter, ++lists;
      }
    }
    return {};
  }
  program::StepResult collect(program::Ticket) override { return {.outputs = rows_}; }
  std::atomic<int> whole_rows = 0, lists = 0;

 protected:
  static constexpr std::array<program::Likely, program::kMaxTopK> kLetter = {{{50.0f, 'l'}}};

 private:
  bool mixes_;
  std::vector<float> logits_;
  std::vector<program::RowResult> rows_;
};

TEST(Engine, AsksForTheLikeliestTokensWhereTheySuffice) {
  Finder executable;
  const text::Tokenizer tokenizer = byte_tokenizer();
  Engine engine(executable, tokenizer, kOptions);
  const auto answer = [&](auto change) {
    Request request = letters(5, 3);
    request.sampling.seed = 1;
    change(request);
    auto listener = std::make_shared<Recorder>();
    engine.submit(std::move(request), listener);
    listener->wait();
    return listener->text;
  };
  EXPECT_EQ(answer([](Request&) {}), "lll");
  EXPECT_EQ(answer([](Request& r) { r.sampling.temperature = 0; }), "lll");
  EXPECT_EQ(executable.lists, 6);
  EXPECT_EQ(executable.whole_rows, 0);
  EXPECT_EQ(answer([](Request& r) { r.top_logprobs = 2; }), "rrr");
  EXPECT_EQ(answer([](Request& r) { r.sampling.top_k = 0, r.sampling.min_p = 0.5f; }), "rrr");
  EXPECT_EQ(answer([](Request& r) { r.sampling.repeat_penalty = 1.1f; }), "rrr");
  EXPECT_EQ(executable.lists, 6);
}

TEST(Engine, BringsLogitsForThoseAnswersAloneThatNeedThem) {
  const text::Tokenizer tokenizer = byte_tokenizer();
  // Which of four answers that decode together want log-probabilities, and what all four say.
  const auto said = [&](Finder& executable, const std::set<int>& wanting) {
    Batcher batcher(executable, tokenizer, kOptions);
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (int i = 0; i < 4; ++i) {
      Request request = letters(1, 3);
      request.sampling.temperature = 0;
      if (wanting.contains(i)) request.top_logprobs = 1;
      listeners.push_back(std::make_shared<Recorder>());
      batcher.add(i + 1, std::move(request), listeners.back(), 1);
    }
    while (batcher.step()) {
    }
    std::string all;
    for (const auto& listener : listeners) all += listener->text + " ";
    return all;
  };
  Finder mixing(true);
  EXPECT_EQ(said(mixing, {1, 3}), "lll 111 lll 333 ");
  EXPECT_EQ(mixing.whole_rows, 6);
  EXPECT_EQ(mixing.lists, 6);
  EXPECT_EQ(said(mixing, {0, 1, 2, 3}), "rrr rrr rrr rrr ");
  Finder finder;
  EXPECT_EQ(said(finder, {2}), "rrr rrr rrr rrr ") << "it gives logits of all or of none";
}

TEST(Engine, RefusesWhatMakesNoSense) {
  Running running;
  const auto refused = [&running](const Request& request) {
    EXPECT_THROW(running.engine.submit(request, std::make_shared<Recorder>()), Error);
  };
  refused({});
  refused({.prompt = {300}});
  refused({.prompt = {-1}});
  refused({.prompt = {'x'}, .max_tokens = -2});
  refused({.prompt = {'x'}, .sampling = {.top_p = 2}});
  refused({.prompt = {'x'}, .sampling = {.logit_bias = {{257, 1.0f}}}});
  refused({.prompt = {'x'}, .sampling = {.logit_bias = {{1, NAN}}}});
  refused({.prompt = {'x'}, .top_logprobs = 21});
  refused({.prompt = {'x'}, .prompt_logprobs = true});
  try {
    running.submit(letters(1024, 1));
    FAIL();
  } catch (const ContextExceeded& error) {
    EXPECT_EQ(error.prompt_tokens, 1024);
    EXPECT_EQ(error.context, 1024);
  }
  EXPECT_EQ(running.submit(letters(1023, -1)).second->wait().finish, Finish::ContextFull);
  EXPECT_EQ(running.submit(letters(3, 0)).second->wait().finish, Finish::Length);
  EXPECT_EQ(running.submit(letters(1024, 0)).second->wait().finish, Finish::Length);
}

TEST(Engine, ScoresAPromptThatFillsTheContext) {
  EngineOptions options = kOptions;
  options.scored_rows = 20;
  On<Endless> running(options);
  Request request = letters(1024, 0);
  request.top_logprobs = 1, request.prompt_logprobs = true;
  const auto listener = running.submit(request).second;
  EXPECT_EQ(listener->wait().finish, Finish::Length);
  EXPECT_EQ(listener->prompt.size(), 1023u);
  EXPECT_EQ(listener->prompt.back()[1].token, 'a');
  EXPECT_EQ(listener->result.generated_tokens, 0);
  EXPECT_EQ(running.executable.rows, 1024);
  request.prompt = {'x'};
  EXPECT_EQ(running.submit(request).second->wait().finish, Finish::Length);
  EXPECT_EQ(running.executable.rows, 1024) << "there is nothing to score";
}

TEST(Engine, CancelsWhoRunsAndWhoWaits) {
  Running running;
  running.executable.hold = true;
  std::vector<std::pair<RequestId, std::shared_ptr<Recorder>>> all;
  all.reserve(8);
  for (int i = 0; i < 8; ++i) all.push_back(running.submit(letters(20 + i, -1)));
  running.engine.cancel(all[1].first);
  running.engine.cancel(all[7].first);
  running.engine.cancel(all[7].first);
  running.engine.cancel(12345);
  running.executable.hold = false;
  running.executable.go.release(1);
  for (const int i : {1, 7}) {
    EXPECT_EQ(all[static_cast<size_t>(i)].second->wait().finish, Finish::Cancelled);
    running.engine.cancel(all[static_cast<size_t>(i)].first);
  }
  for (const int i : {0, 2, 3, 4, 5, 6})
    EXPECT_EQ(all[static_cast<size_t>(i)].second->wait().finish, Finish::ContextFull);
}

TEST(Engine, ACancelledPromptStopsAfterItsChunk) {
  Running running;
  running.executable.hold = true;
  const auto [id, listener] = running.submit(letters(1000, 5));
  running.executable.go.release(2);
  while (running.executable.rows < 64) std::this_thread::yield();  // the third step waits
  running.engine.cancel(id);
  running.executable.go.release(100);
  EXPECT_EQ(listener->wait().finish, Finish::Cancelled);
  EXPECT_LE(running.executable.rows, 96);
}

/// Its steps with rows of prompts last until they are given up, once `patient`.
class GivenUp : public Endless {
 public:
  void run(const program::Step& step, Said& said) override {
    const bool reads = step.input.outputs() < step.input.rows();
    if (patient && reads) {
      if (step.stop == nullptr) {
        ++may_not;
      } else {
        waits = true;
        for (int i = 0; i < 12'000 && !*step.stop; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        waits = false;
        said.stopped = *step.stop;
        EXPECT_TRUE(said.stopped) << "nobody gave the step up";
        ++stopped;
        return;
      }
    }
    Endless::run(step, said);
  }
  std::atomic<bool> patient = true, waits = false;
  std::atomic<int> stopped = 0, may_not = 0;

  void wait_for_a_step() const {
    while (!waits) std::this_thread::yield();
  }
};

using Given = On<GivenUp>;

TEST(Engine, GivesUpAStepThatReadsACancelledPromptAlone) {
  Given given;
  const auto [id, listener] = given.submit(letters(1000, 5));
  given.executable.wait_for_a_step();
  given.engine.cancel(id);
  EXPECT_EQ(listener->wait().finish, Finish::Cancelled);
  EXPECT_EQ(given.executable.stopped, 1);
  EXPECT_EQ(given.executable.rows, 0);
  given.executable.patient = false;
  const auto next = given.submit(letters(100, 5)).second;
  EXPECT_EQ(next->wait().finish, Finish::Length);
  EXPECT_EQ(next->text, "aaaaa");
  EXPECT_EQ(next->result.cached_tokens, 0) << "what was given up counts as computed";
}

TEST(Engine, AnswersLoseNothingByAStepThatIsGivenUp) {
  Given given;
  given.executable.patient = false;
  given.executable.hold = true;
  const auto answer = given.submit(letters(1, 40)).second;
  given.executable.go.release(5);
  while (given.executable.rows < 5) std::this_thread::yield();
  given.executable.patient = true;
  const auto [id, listener] = given.submit(letters(1000, 5));
  given.executable.go.release(1);  // the step that was held
  given.executable.wait_for_a_step();
  given.executable.hold = false;
  given.executable.go.release(1);
  given.engine.cancel(id);
  EXPECT_EQ(listener->wait().finish, Finish::Cancelled);
  EXPECT_EQ(answer->wait().finish, Finish::Length);
  EXPECT_EQ(answer->text, std::string(40, 'a'));
  EXPECT_EQ(given.executable.stopped, 1);
  EXPECT_EQ(given.executable.rows, 40);
}

// Nobody keeps others' answers waiting by cancelling one prompt after the other.
TEST(Engine, ASecondStepInARowIsNotGivenUpBesideAnswers) {
  GivenUp executable;
  const text::Tokenizer tokenizer = byte_tokenizer();
  Batcher batcher(executable, tokenizer, kOptions);
  executable.patient = false;
  auto answer = std::make_shared<Recorder>();
  batcher.add(1, letters(1, 40), answer, 1);
  batcher.step();
  executable.patient = true;
  const std::atomic<bool> stop = true;
  batcher.add(2, letters(100, 5), std::make_shared<Recorder>(), 1);
  for (const int expected : {0, 1, 1, 2}) {
    EXPECT_TRUE(batcher.step(&stop));
    EXPECT_EQ(executable.may_not, expected);
  }
  EXPECT_EQ(executable.stopped, 2);
  EXPECT_EQ(answer->tokens.size(), 3u);
  batcher.end_all(Finish::Cancelled);
}

/// Does something during every step.
class Watched : public Endless {
 public:
  void run(const program::Step& step, Said& said) override {
    during();
    Endless::run(step, said);
  }
  std::function<void()> during;
};

// Only a step that reads one prompt alone is given up for it.
TEST(Engine, AStepThatReadsAnotherPromptTooIsNobodysAlone) {
  Watched executable;
  const text::Tokenizer tokenizer = byte_tokenizer();
  Batcher batcher(executable, tokenizer, kOptions);
  std::vector<std::set<RequestId>> alone;  // whose a step is, by step
  executable.during = [&] {
    alone.emplace_back();
    for (const RequestId id : {1, 2, 3})
      if (batcher.only_reads(id)) alone.back().insert(id);
  };
  for (const RequestId id : {1, 2}) batcher.add(id, letters(10, 9), std::make_shared<Recorder>(), 1);
  batcher.step();  // reads both prompts
  batcher.step();  // none
  batcher.add(3, letters(10, 9), std::make_shared<Recorder>(), 1);
  batcher.step();  // the third, beside two answers
  EXPECT_THAT(alone, testing::ElementsAre(testing::IsEmpty(), testing::IsEmpty(), testing::ElementsAre(3)));
  batcher.end_all(Finish::Cancelled);
}

TEST(Engine, StoppingGivesUpTheStepThatRuns) {
  Given given;
  const auto listener = given.submit(letters(1000, 5)).second;
  given.executable.wait_for_a_step();
  given.engine.stop();
  EXPECT_EQ(listener->wait().finish, Finish::Shutdown);
  EXPECT_EQ(given.executable.stopped, 1);
}

/// Its long steps have pieces of a millisecond and pause between them; while `endless` they have always one
/// more.
class Pausing : public Endless {
 public:
  program::Facts facts() const override { return {.aside_rows = 8}; }
  void run(const program::Step& step, Said& said) override {
    const program::StepInput& input = step.input;
    if (step.turn == program::Turn::Aside) {
      EXPECT_LE(input.rows(), facts().aside_rows);
      ++asides;
      return Endless::run(step, said);
    }
    if (input.rows() <= facts().aside_rows) return Endless::run(step, said);
    if (step.turn == program::Turn::Whole) {
      left_ = 20, positions_ = {input.positions.begin(), input.positions.end()};
    } else {
      EXPECT_TRUE(std::ranges::equal(input.positions, positions_));
    }
    for (in_long_step = true; left_ > 0;) {
      if (*step.stop) {
        said.stopped = true, ++stopped, left_ = 0;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!endless) --left_;
      said.paused = left_ > 0 && (*step.pause || now_ns() > step.pause_ns);
      if (said.paused) return;
    }
    Endless::run(step, said);
  }
  void wait_for_a_long_step() const {
    while (!in_long_step) std::this_thread::yield();
  }
  std::atomic<bool> endless = true, in_long_step = false;
  std::atomic<int> asides = 0, stopped = 0;

 private:
  int left_ = 0;
  std::vector<int32_t> positions_;
};

constexpr EngineOptions kPausingOptions{
    .context = 1024, .max_sequences = 4, .max_rows = 32, .pages = 64, .max_itl_ms = 5, .max_waiting = 8};

TEST(Engine, AShortPromptAndItsAnswerDoNotWaitForALongStep) {
  On<Pausing> paused(kPausingOptions);
  const auto prompt = paused.submit(letters(1000, 1)).second;
  paused.executable.wait_for_a_long_step();
  for (int i = 0; i < 3; ++i) {  // the step never ends by itself
    Request request = letters(5 + i, 40);
    request.use_cache = false;
    const auto answer = paused.submit(std::move(request)).second;
    EXPECT_EQ(answer->wait().finish, Finish::Length);
    EXPECT_EQ(answer->text, std::string(40, 'a'));
  }
  EXPECT_EQ(prompt->ends, 0);
  EXPECT_GE(paused.executable.asides, 120);
  EXPECT_EQ(paused.executable.rows, 5 + 6 + 7 + 3 * 39);
  paused.executable.endless = false;
  EXPECT_EQ(prompt->wait().finish, Finish::Length);
  EXPECT_EQ(prompt->text, "a");
  EXPECT_EQ(paused.executable.rows, 1000 + 5 + 6 + 7 + 3 * 39);
  EXPECT_EQ(paused.executable.stopped, 0);
}

TEST(Engine, ALongStepOfOnePromptIsGivenUpWithItAndAnswersGoOn) {
  On<Pausing> paused(kPausingOptions);
  const auto [id, prompt] = paused.submit(letters(1000, 1));
  paused.executable.wait_for_a_long_step();
  const auto answer = paused.submit(letters(1, -1)).second;
  while (paused.executable.asides < 3) std::this_thread::yield();
  paused.engine.cancel(id);
  EXPECT_EQ(prompt->wait().finish, Finish::Cancelled);
  EXPECT_LE(paused.executable.stopped, 1) << "not at all, if it was paused just then";
  EXPECT_EQ(answer->wait().finish, Finish::ContextFull);
  EXPECT_EQ(answer->text, std::string(1024, 'a'));
  ASSERT_TRUE(paused.engine.drain(10));
  EXPECT_EQ(paused.engine.stats().used_pages, 0);
}

TEST(Batcher, ACancelledPromptKeepsItsPagesUntilItsLongStepEnds) {
  Pausing executable;
  const text::Tokenizer tokenizer = byte_tokenizer();
  Batcher batcher(executable, tokenizer, kPausingOptions);
  const auto first = std::make_shared<Recorder>(), second = std::make_shared<Recorder>();
  const std::atomic<bool> stop = false, pause = true;
  batcher.add(1, letters(10, 3), first, 1);
  batcher.add(2, letters(20, 3), second, 1);
  EXPECT_TRUE(batcher.step(&stop, &pause));
  ASSERT_TRUE(batcher.scheduler().long_step());
  batcher.cancel(1);
  EXPECT_TRUE(batcher.step(&stop, &pause));
  EXPECT_EQ(first->ends, 0);
  EXPECT_EQ(batcher.scheduler().running().size(), 2u);
  executable.endless = false;
  while (batcher.scheduler().long_step()) EXPECT_TRUE(batcher.step(&stop, &pause));
  EXPECT_EQ(first->result.finish, Finish::Cancelled);
  EXPECT_EQ(first->text, "");
  EXPECT_EQ(second->text, "a");
  // All at once, in the midst of a long step.
  executable.endless = true;
  batcher.add(3, letters(200, 3), std::make_shared<Recorder>(), 1);
  EXPECT_TRUE(batcher.step(&stop, &pause));
  ASSERT_TRUE(batcher.scheduler().long_step());
  batcher.end_all(Finish::Shutdown);
  EXPECT_EQ(second->result.finish, Finish::Shutdown);
  EXPECT_FALSE(batcher.scheduler().long_step());
  EXPECT_EQ(batcher.requests(), 0);
}

TEST(Engine, StoppingAndFailingEndALongStepThatIsPaused) {
  for (const bool fails : {false, true}) {
    On<Pausing> paused(kPausingOptions);
    const auto prompt = paused.submit(letters(1000, 1)).second;
    paused.executable.wait_for_a_long_step();
    const auto answer = paused.submit(letters(1, -1)).second;
    while (paused.executable.asides < 3) std::this_thread::yield();
    if (fails) {
      paused.executable.fails = true;
    } else {
      paused.engine.stop();
    }
    EXPECT_EQ(prompt->wait().finish, fails ? Finish::Error : Finish::Shutdown);
    EXPECT_EQ(answer->wait().finish, fails ? Finish::Error : Finish::Shutdown);
  }
}

TEST(Engine, AListenerMayCancelAndSubmit) {
  Running running;
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  first->also = [&](const TokenEvent& event) {
    if (event.index != 2) return;
    Request next = letters(5, 3);
    next.sampling.temperature = 0;
    running.engine.submit(std::move(next), second);
    running.engine.cancel(event.id);
  };
  Request request = letters(5, -1);
  request.sampling.temperature = 0;
  running.engine.submit(std::move(request), first);
  EXPECT_EQ(first->wait().finish, Finish::Cancelled);
  EXPECT_EQ(first->tokens.size(), 3u);
  EXPECT_EQ(second->wait().finish, Finish::Length);
}

TEST(Engine, RefusesMoreThanMayWaitAndStopsWithAReason) {
  Running running;
  running.executable.hold = true;
  std::vector<std::shared_ptr<Recorder>> all;
  int refused = 0;
  for (int i = 0; i < 30; ++i) {
    try {
      all.push_back(running.submit(letters(10, -1)).second);
    } catch (const Unavailable&) {
      ++refused;
    }
  }
  // Eight wait; those that the thread had taken before it began to wait for its device come on top.
  EXPECT_GE(all.size(), 8u);
  EXPECT_GE(refused, 30 - 8 - 8);
  running.engine.close();
  EXPECT_THROW(running.submit(letters(10, 1)), Unavailable);
  EXPECT_FALSE(running.engine.drain(0.01));
  auto stopped = std::async(std::launch::async, [&running] { running.engine.stop(); });
  // A step now and then, so that none reaches its end before the engine is told to stop.
  while (stopped.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
    running.executable.go.release(1);
  int shut_down = 0;
  for (const auto& listener : all) {
    EXPECT_EQ(listener->ends, 1) << "nobody calls after stop()";
    shut_down += listener->result.finish == Finish::Shutdown;
  }
  EXPECT_GT(shut_down, 0);
}

TEST(Engine, ADeviceThatFailsEndsEverythingWithAnError) {
  Running running;
  running.executable.fails = true;
  const auto listener = running.submit(letters(10, 5)).second;
  EXPECT_EQ(listener->wait().finish, Finish::Error);
  EXPECT_EQ(listener->result.error, "the device is gone");
  EXPECT_THROW(running.submit(letters(10, 5)), Unavailable);
  EXPECT_TRUE(running.engine.drain(10));
}

/// A damaged model's: the same letter three times, then nothing that is a number.
class Damaged : public Endless {
 public:
  void run(const program::Step& step, Said& said) override {
    Endless::run(step, said);
    if (step.input.outputs() > 0 && ++outputs > 3) std::ranges::fill(said.logits, nothing);
  }
  float nothing = std::numeric_limits<float>::quiet_NaN();
  int outputs = 0;
};

TEST(Engine, AnAnswerEndsWithAnErrorWhereNoLogitIsANumber) {
  for (const float nothing :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0f, 0.8f}) {
      for (const int32_t top_k : {0, 40}) {
        On<Damaged> damaged;
        damaged.executable.nothing = nothing;
        Request request = letters(10, 20);
        request.sampling.temperature = temperature;
        request.sampling.top_k = top_k;
        const auto listener = std::make_shared<Recorder>();
        damaged.engine.submit(std::move(request), listener);
        EXPECT_EQ(listener->wait().finish, Finish::Error);
        EXPECT_EQ(listener->result.error, "no logit of the model is a number: its file may be damaged");
        EXPECT_EQ(listener->text, "aaa");
        EXPECT_EQ(listener->result.generated_tokens, 3);
      }
    }
  }
}

/// Takes steps ahead, and fails at the end of the third while a fourth has begun.
class BreaksAhead : public Finder {
 public:
  program::Facts facts() const override { return {.steps_in_flight = 2, .top = true, .drawn = true}; }
  program::Ticket submit(const program::Step& step) override {
    EXPECT_EQ(step.input.outputs(), 1);
    return program::Ticket{static_cast<uint64_t>(++begun)};
  }
  program::StepResult collect(program::Ticket ticket) override {
    if (ended == 2) throw Error("the device is gone");
    EXPECT_EQ(static_cast<int>(ticket), ++ended);
    return {.outputs = {&row_, 1}};
  }
  std::atomic<int> begun = 0, ended = 0;

 private:
  program::RowResult row_{.top = kLetter, .drawn = 'l'};
};

TEST(Engine, ADeviceThatFailsWithAStepAheadEndsEverythingWithAnError) {
  BreaksAhead executable;
  const text::Tokenizer tokenizer = byte_tokenizer();
  const auto listener = std::make_shared<Recorder>();
  {
    Engine engine(executable, tokenizer, kOptions);
    Request request = letters(5, 20);
    request.sampling.temperature = 0;
    engine.submit(std::move(request), listener);
    EXPECT_EQ(listener->wait().finish, Finish::Error);
    EXPECT_TRUE(engine.drain(10));
  }
  EXPECT_EQ(listener->result.error, "the device is gone");
  EXPECT_EQ(listener->text, "ll");
  EXPECT_EQ(executable.begun, 4);
}

TEST(Engine, NamesTheStopStringAndHoldsItBack) {
  Running running;
  Request request = letters(3, 50);
  request.stops = {"aaaab", "aaaa"};
  const auto listener = running.submit(request).second;
  EXPECT_EQ(listener->wait().finish, Finish::StopString);
  EXPECT_EQ(listener->result.stop, "aaaa");
  EXPECT_EQ(listener->text, "");
  EXPECT_EQ(listener->tokens.size(), 4u);
}

/// Lets only some letters come, one after the other.
class Spelling : public text::TokenConstraint {
 public:
  explicit Spelling(std::string word) : word_(std::move(word)) {}
  bool allowed(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0u);
    if (at_ < word_.size()) {
      const auto token = static_cast<unsigned char>(word_[at_]);
      bits[token / 32] |= 1u << (token % 32);
    }
    return true;
  }
  bool accept(int32_t token) override {
    if (at_ >= word_.size() || token != static_cast<unsigned char>(word_[at_])) return false;
    ++at_;
    return true;
  }
  bool may_end() const override { return at_ == word_.size(); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Spelling>(*this); }

 private:
  std::string word_;
  size_t at_ = 0;
};

TEST(Engine, AConstraintDecidesWhatMayCome) {
  Running running;
  Request request = letters(3, 6);
  request.constraint = std::make_shared<Spelling>("{\"b\":}");
  const auto listener = running.submit(request).second;
  EXPECT_EQ(listener->wait().finish, Finish::Length);
  EXPECT_EQ(listener->text, "{\"b\":}");
  request.max_tokens = 7;
  request.constraint = std::make_shared<Spelling>("{\"b\":}");
  const auto stuck = running.submit(request).second;
  EXPECT_EQ(stuck->wait().finish, Finish::Error);
  EXPECT_THAT(stuck->result.error, testing::HasSubstr("constraint"));
}

TEST(Engine, BiasBansAndForcesTokens) {
  Running running;
  Request request = letters(3, 3);
  request.sampling.logit_bias = {{'a', -INFINITY}, {'q', 1.0f}};
  const auto listener = running.submit(request).second;
  listener->wait();
  EXPECT_EQ(listener->text, "qqq");
}

TEST(Engine, LogProbabilitiesAreTheModels) {
  Running running;
  Request request = letters(3, 2);
  request.top_logprobs = 2;
  request.sampling.logit_bias = {{'b', 100.0f}};
  const auto listener = running.submit(request).second;
  listener->wait();
  EXPECT_EQ(listener->text, "bb");
  const auto rest = static_cast<float>(-50 - std::log1p(256 * std::exp(-50.0)));
  EXPECT_THAT(listener->logprobs, testing::ElementsAre(rest, testing::FloatNear(0, 1e-6f), rest, rest,
                                                       testing::FloatNear(0, 1e-6f), rest));
}

/// Throws what it is told to in a step; holds steps until then.
class Failing : public Endless {
 public:
  void run(const program::Step& step, Said& said) override {
    while (holds) std::this_thread::yield();
    if (what == 1) throw Error("the device is gone");
    if (what == 2) throw std::bad_alloc();
    if (what == 3) throw 42;
    Endless::run(step, said);
  }
  std::atomic<bool> holds = false;
  std::atomic<int> what = 0;
};

TEST(Engine, SaysThatItHasFailedWhateverWasThrown) {
  for (const int what : {1, 2, 3}) {
    On<Failing> failing;
    EXPECT_EQ(failing.engine.failure(), "");
    EXPECT_EQ(failing.submit(letters(5, 5)).second->wait().finish, Finish::Length);
    std::vector<std::shared_ptr<Recorder>> all;
    failing.executable.holds = true;
    for (int i = 0; i < 6; ++i) all.push_back(failing.submit(letters(5, -1)).second);  // two wait
    failing.executable.what = what;
    failing.executable.holds = false;
    for (const auto& listener : all) EXPECT_EQ(listener->wait().finish, Finish::Error);
    EXPECT_NE(failing.engine.failure(), "");
    EXPECT_THROW(failing.submit(letters(5, 5)), Unavailable);
    EXPECT_TRUE(failing.engine.drain(10));
    failing.engine.stop();
  }
}

TEST(Engine, TooLittleMemoryForOneListenerEndsItsRequestAlone) {
  Running running;
  auto poor = std::make_shared<Recorder>();
  poor->also = [](const TokenEvent& event) {
    if (event.index == 2) throw std::bad_alloc();
  };
  Request request = letters(5, -1);
  request.sampling.temperature = 0;
  const auto other = running.submit(letters(5, 200)).second;
  running.engine.submit(std::move(request), poor);
  EXPECT_EQ(poor->wait().finish, Finish::OutOfMemory);
  EXPECT_EQ(other->wait().finish, Finish::Length);
  EXPECT_EQ(other->text, std::string(200, 'a'));
  EXPECT_EQ(running.engine.failure(), "");
  EXPECT_EQ(running.submit(letters(5, 5)).second->wait().finish, Finish::Length);
  EXPECT_TRUE(running.engine.drain(10));
  EXPECT_EQ(running.engine.stats().used_pages, 0);
}

/// Everything may come, after this thread has computed for a while.
class Slow : public text::TokenConstraint {
 public:
  bool allowed(std::span<uint32_t>) override {
    timespec time{};
    const auto now = [&] {
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return time.tv_sec * 1'000'000'000 + time.tv_nsec;
    };
    for (const int64_t begin = now(); now() - begin < 5'000'000;) {
    }
    return false;
  }
  bool accept(int32_t) override { return true; }
  bool may_end() const override { return true; }
  std::unique_ptr<text::TokenConstraint> clone() const override { return std::make_unique<Slow>(); }
};

TEST(Engine, DearMasksOfOneRequestCostOthersHalfOfTheirRate) {
  constexpr EngineOptions kMany{
      .context = 1024, .max_sequences = 16, .max_rows = 32, .pages = 300, .max_waiting = 32};
  On<Endless> given(kMany);
  for (int i = 0; i < 12; ++i) {
    Request slow = letters(5, -1);
    slow.call = 7;
    slow.constraint = std::make_shared<Slow>();
    given.submit(std::move(slow));
  }
  const auto rows_before = given.executable.rows.load();
  const auto plain = given.submit(letters(5, 400)).second;
  EXPECT_EQ(plain->wait().finish, Finish::Length);
  EXPECT_EQ(plain->text, std::string(400, 'a'));
  // Without the pace every step would have rows of all twelve, and take 60 ms.
  const int64_t others = given.executable.rows - rows_before - 404;
  EXPECT_LT(others, 400);
}

}  // namespace
}  // namespace sluice::engine
