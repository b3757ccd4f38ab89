// The scheduler in simulations: a device that remembers what it wrote where, random arrivals, ends and
// cancels, pools that are too small; and a machine whose steps take a known time.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace sluice::engine {
namespace {

using program::kPageRows;
using Tokens = std::vector<int32_t>;

/// A scheduler with its sequences, by the numbers of their requests.
class Owner : public Scheduler {
 public:
  using Scheduler::Scheduler;
  void add(RequestId id, Tokens prompt, const std::string& client, bool use_cache = true,
           int64_t scored_from = Sequence::kNoScores, uint64_t call = 0) {
    Sequence& own = sequences_[id];
    own.call = call;
    own.id = id, own.client = client, own.tokens = std::move(prompt), own.use_cache = use_cache;
    own.scored_from = scored_from;
    Scheduler::add(own);
  }
  /// So many of its rows more are scored.
  void score(RequestId id, int64_t rows) {
    Sequence& own = sequences_.at(id);
    own.scored_from += rows;
    if (own.scored_from + 1 >= own.prompt_tokens) own.scored_from = Sequence::kNoScores;
  }
  void remove(RequestId id) {
    Scheduler::remove(sequences_.at(id));
    sequences_.erase(id);
  }
  void append(RequestId id, int32_t token) { Scheduler::append(sequences_.at(id), token); }
  void draft(RequestId id, int64_t tokens) { sequences_.at(id).drafted = tokens; }
  void accept(RequestId id) { Scheduler::accept(sequences_.at(id)); }
  const Sequence& sequence(RequestId id) const { return sequences_.at(id); }

 private:
  std::map<RequestId, Sequence> sequences_;
};

/// A number that says what all the tokens up to a position are: what a row of the cache depends on.
uint64_t chain(uint64_t before, int32_t token) {
  uint64_t z = before * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(token) + 1;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  return z ^ (z >> 27);
}

/// What was drafted, by request.
using Drafts = std::map<RequestId, Tokens>;

/// The cache's memory, and what every row that a step reads must hold.
class Device {
 public:
  Device(int64_t pages, int64_t state_slots, const Drafts& drafts)
      : rows_(static_cast<size_t>(pages) * kPageRows),
        states_(static_cast<size_t>(state_slots)),
        drafts_(drafts) {}

  void run(std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) write(chunk);
    read(chunks);
  }
  void read(std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) read(chunk);
  }

 private:
  uint64_t& row(const Chunk& chunk, int64_t position) {
    const int32_t page = chunk.sequence->pages.pages.at(static_cast<size_t>(position / kPageRows));
    return rows_.at(static_cast<size_t>(int64_t{page} * kPageRows + position % kPageRows));
  }
  void write(const Chunk& chunk) {
    uint64_t value = 0;
    for (int64_t at = 0; at < chunk.first + chunk.rows; ++at) {
      if (at == chunk.first && at > 0 && !states_.empty()) {
        ASSERT_EQ(state(chunk, false), value) << "request " << chunk.sequence->id << ", position " << at;
      }
      value = chain(value, chunk.sequence->tokens.at(static_cast<size_t>(at)));
      if (at >= chunk.first) row(chunk, at) = value;
    }
    if (!states_.empty()) state(chunk, true) = value;
    for (int64_t i = 0; i < chunk.drafts; ++i) {
      value = chain(value, drafts_.at(chunk.sequence->id).at(static_cast<size_t>(i)));
      row(chunk, chunk.first + chunk.rows + i) = value;
    }
  }
  void read(const Chunk& chunk) {
    uint64_t value = 0;
    for (int64_t at = 0; at < chunk.first + chunk.rows; ++at) {
      value = chain(value, chunk.sequence->tokens[static_cast<size_t>(at)]);
      ASSERT_EQ(row(chunk, at), value) << "request " << chunk.sequence->id << ", position " << at;
    }
    if (!states_.empty()) {
      ASSERT_EQ(state(chunk, true), value) << "request " << chunk.sequence->id;
    }
  }
  /// What a step finds, or what it leaves.
  uint64_t& state(const Chunk& chunk, bool left) {
    const program::StateSlots slots = chunk.sequence->pages.state;
    EXPECT_NE(slots.from, slots.to) << "a step that is given up leaves nothing to begin with again";
    return states_.at(static_cast<size_t>(left ? slots.to : slots.from));
  }

  std::vector<uint64_t> rows_, states_;
  const Drafts& drafts_;
};

/// Rows of a chunk that are scored.
int64_t scores_of(const Chunk& chunk) {
  int64_t scores = 0;
  for (int64_t at = chunk.first; at < chunk.first + chunk.rows; ++at) scores += chunk.sequence->scored(at);
  return scores;
}

/// What must hold of every plan, of one aside, too.
void check_plan(const Scheduler& scheduler, std::span<const Chunk> chunks, int64_t max_rows, bool aside,
                int64_t draft_rows, int64_t max_outputs) {
  int64_t rows = 0, drafts = 0, outputs = 0;
  std::set<RequestId> seen;
  for (const Chunk& chunk : chunks) {
    ASSERT_TRUE(seen.insert(chunk.sequence->id).second) << "one chunk a sequence";
    ASSERT_GT(chunk.rows, 0);
    ASSERT_EQ(chunk.first, chunk.sequence->pages.rows);
    ASSERT_LE(chunk.first + chunk.rows, std::ssize(chunk.sequence->tokens));
    ASSERT_TRUE(chunk.drafts == 0 || (chunk.rows == 1 && chunk.last() && (aside || !scheduler.long_step())));
    rows += chunk.rows + chunk.drafts;
    drafts += chunk.drafts;
    outputs += chunk.last() + chunk.drafts + scores_of(chunk);
    const Sequence& sequence = *chunk.sequence;
    if (sequence.scored()) {
      ASSERT_GE(sequence.scored_from, chunk.first) << "a row that is scored was taken from the cache";
    }
  }
  ASSERT_LE(rows, max_rows);
  ASSERT_LE(outputs, max_outputs);
  ASSERT_TRUE(drafts == 0 || rows <= draft_rows) << rows;
  for (const Sequence* sequence : scheduler.running()) {
    if (aside) {
      ASSERT_FALSE(seen.contains(sequence->id) && sequence->in_long_step) << "request " << sequence->id;
    } else if (scheduler.long_step()) {
      ASSERT_EQ(seen.contains(sequence->id), sequence->in_long_step) << "request " << sequence->id;
    } else {  // whoever runs goes on in every step
      ASSERT_TRUE(seen.contains(sequence->id)) << "request " << sequence->id;
    }
  }
}

struct Shape {
  uint32_t seed;
  int32_t max_sequences;
  int64_t max_rows, context_pages, pages;
  uint32_t arrivals_percent, cancels_percent;
  int64_t aside_rows = 0, draft_tokens = 0;
  /// A quarter of the requests is scored then, and steps have so many outputs at most; 0: none is.
  int64_t outputs = 0;
  int64_t state_slots = 0;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.max_sequences << " sequences, " << shape.pages << " pages, " << shape.aside_rows << " aside, "
       << shape.draft_tokens << " drafted, " << shape.outputs << " outputs, " << shape.state_slots
       << " slots of states";
}

class SchedulerSimulation : public testing::TestWithParam<Shape> {};

TEST_P(SchedulerSimulation, LeaksNothingAndEndsEverything) {
  const Shape& shape = GetParam();
  const int64_t context = shape.context_pages * kPageRows;
  std::mt19937 random(shape.seed);
  const auto below = [&random](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  // Shallow steps have a quarter of the rows: fewer than there are sequences in some shapes, 0 (all) in one.
  Owner scheduler({context, shape.max_sequences, shape.max_rows, shape.pages, 0.1, shape.max_rows / 4,
                   shape.aside_rows, 0, shape.draft_tokens + 1, shape.outputs, shape.state_slots});
  const int64_t max_outputs = shape.outputs > 0 ? shape.outputs : shape.max_rows;
  Drafts drafts;  // for the next step
  Device device(shape.pages, shape.state_slots, drafts);

  std::map<RequestId, int64_t> wants;  // tokens of the answer, by request that has not ended
  std::map<RequestId, int> arrived;    // the step
  std::vector<Tokens> known;           // prompts and answers that later prompts begin with
  RequestId last_id = 0;
  int64_t ended = 0, cancelled = 0, cached = 0, longest = 0, long_steps = 0, asides = 0, accepted = 0;
  std::map<RequestId, int64_t> unscored;  // rows, by request; 0: all are scored
  const auto arrive = [&](int step) {
    Tokens prompt;
    if (!known.empty() && below(4) > 0) {
      prompt = known[static_cast<size_t>(below(std::ssize(known)))];
      if (below(2) == 0) prompt.resize(static_cast<size_t>(below(std::ssize(prompt)) + 1));
    }
    const int64_t more = below(3) == 0 ? below(context) : below(40);
    for (int64_t i = 0; i < more; ++i) prompt.push_back(static_cast<int32_t>(below(3)));
    prompt.push_back(1);
    prompt.resize(std::min<size_t>(prompt.size(), static_cast<size_t>(context)));
    if (known.size() < 50) known.push_back(prompt);
    const RequestId id = ++last_id;
    wants[id] = 1 + below(below(5) == 0 ? context : 20);
    arrived[id] = step;
    const bool scored = shape.outputs > 0 && prompt.size() > 1 && below(4) == 0;
    if (scored) unscored[id] = std::ssize(prompt) - 1;
    scheduler.add(id, std::move(prompt), std::to_string(below(4)), below(10) > 0,
                  scored ? 0 : Sequence::kNoScores);
  };
  const auto end = [&](RequestId id, int step) {
    if (scheduler.sequence(id).in_long_step) scheduler.end_long_step();
    longest = std::max<int64_t>(longest, step - arrived.at(id));
    if (below(3) == 0) known[static_cast<size_t>(below(std::ssize(known)))] = scheduler.sequence(id).tokens;
    scheduler.remove(id);
    wants.erase(id);
    unscored.erase(id);
    ++ended;
  };
  int64_t scores = 0;
  const auto score = [&](std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) {
      const int64_t rows = scores_of(chunk);
      const RequestId id = chunk.sequence->id;
      if (rows > 0) scheduler.score(id, rows), unscored.at(id) -= rows, scores += rows;
      ASSERT_TRUE(!chunk.last() || !unscored.contains(id) || unscored.at(id) == 0) << "request " << id;
    }
  };

  const auto outputs = [](std::span<const Chunk> chunks) {
    std::vector<std::pair<RequestId, int64_t>> draws;  // and how many of its drafts had rows
    for (const Chunk& chunk : chunks)
      if (chunk.last()) draws.emplace_back(chunk.sequence->id, chunk.drafts);
    return draws;
  };
  const auto draw = [&](const std::vector<std::pair<RequestId, int64_t>>& draws, int step) {
    for (const auto& [id, drafted] : draws) {
      for (int64_t i = 0; i <= drafted; ++i) {
        const bool full = std::ssize(scheduler.sequence(id).tokens) == context;
        if (--wants.at(id) == 0 || full) {
          end(id, step);
          break;
        }
        const auto token = static_cast<int32_t>(below(3));
        scheduler.append(id, token);
        if (i == drafted || token != drafts.at(id).at(static_cast<size_t>(i))) break;
        scheduler.accept(id);
        scheduler.check();
        ++accepted;
      }
    }
  };
  const auto draft = [&] {
    drafts.clear();
    for (const Sequence* sequence : scheduler.running()) {
      if (shape.draft_tokens == 0 || sequence->uncomputed() > 1) continue;
      Tokens& tokens = drafts[sequence->id];
      for (int64_t n = below(shape.draft_tokens + 1); n > 0; --n)
        tokens.push_back(static_cast<int32_t>(below(3)));
      scheduler.draft(sequence->id, std::ssize(tokens));
    }
  };
  const auto seconds = [&] { return 1e-3 * static_cast<double>(1 + below(100)); };

  constexpr int kSteps = 2500;
  std::span<const Chunk> chunks;
  int step = 0;
  for (; step < kSteps || !wants.empty(); ++step) {
    ASSERT_LT(step, 40 * kSteps) << wants.size() << " requests do not end";
    if (step < kSteps && below(100) < shape.arrivals_percent) arrive(step);
    if (!wants.empty() && below(100) < shape.cancels_percent) {
      auto victim = wants.begin();
      std::advance(victim, below(std::ssize(wants)));
      end(victim->first, step);
      ++cancelled;
    }
    if (!scheduler.long_step()) {
      draft();
      chunks = scheduler.plan();
      ASSERT_EQ(chunks.empty(), wants.empty());
      check_plan(scheduler, chunks, shape.max_rows, false, shape.draft_tokens + 1, max_outputs);
      if (testing::Test::HasFatalFailure()) return;
      scheduler.check();
      for (const Sequence* one : scheduler.admitted()) cached += one->cached_tokens;
      device.run(chunks);
      if (testing::Test::HasFatalFailure()) return;
      long_steps += scheduler.long_step();
    }
    if (scheduler.long_step()) {
      draft();
      const auto aside = scheduler.plan_aside();
      check_plan(scheduler, aside, shape.aside_rows, true, shape.draft_tokens + 1, max_outputs);
      if (testing::Test::HasFatalFailure()) return;
      for (const Sequence* one : scheduler.admitted()) cached += one->cached_tokens;
      device.run(aside);
      if (testing::Test::HasFatalFailure()) return;
      asides += !aside.empty();
      const auto draws = outputs(aside);
      score(aside);
      if (testing::Test::HasFatalFailure()) return;
      scheduler.computed_aside(seconds());
      scheduler.check();
      draw(draws, step);
      if (!scheduler.long_step() || below(4) > 0) continue;  // it pauses again
      device.read(chunks);                                   // what steps aside wrote meanwhile is not there
      if (testing::Test::HasFatalFailure()) return;
    }
    const auto draws = outputs(chunks);
    score(chunks);
    if (testing::Test::HasFatalFailure()) return;
    scheduler.computed(seconds());
    scheduler.check();
    draw(draws, step);
  }
  EXPECT_EQ(long_steps > 0 && asides > 0, shape.aside_rows > 0);
  EXPECT_EQ(accepted > 100, shape.draft_tokens > 0) << accepted;
  EXPECT_EQ(scores > 1000, shape.outputs > 0) << scores;
  EXPECT_EQ(ended, static_cast<int64_t>(last_id));
  EXPECT_EQ(scheduler.waiting(), 0);
  EXPECT_TRUE(scheduler.running().empty());
  EXPECT_EQ(scheduler.cache().available(), shape.pages) << "no page is lost";
  // With slots for states that steps need and no more, hardly a snapshot lasts.
  if (shape.state_slots == 0 || shape.state_slots > StatePool::least_slots(shape.max_sequences)) {
    EXPECT_GT(cached, 0);
  }
  std::printf(
      "%d steps, %lld requests (%lld cancelled), %lld tokens from the cache, %lld preemptions, longest %lld "
      "steps\n",
      step, static_cast<long long>(ended), static_cast<long long>(cancelled), static_cast<long long>(cached),
      static_cast<long long>(scheduler.preemptions()), static_cast<long long>(longest));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SchedulerSimulation,
    testing::Values(
        Shape{1, 1, 16, 3, 3, 30, 2}, Shape{2, 4, 16, 4, 4, 40, 3}, Shape{3, 8, 64, 5, 9, 60, 5},
        Shape{4, 8, 64, 5, 40, 60, 5}, Shape{5, 32, 128, 6, 60, 90, 10}, Shape{6, 3, 3, 4, 7, 20, 0},
        Shape{7, 16, 512, 20, 24, 50, 30}, Shape{8, 64, 64, 3, 500, 100, 2}, Shape{9, 4, 64, 4, 5, 40, 3, 4},
        Shape{10, 8, 64, 5, 40, 60, 5, 16}, Shape{11, 16, 128, 20, 24, 50, 30, 64},
        Shape{12, 1, 16, 3, 3, 30, 2, 0, 7}, Shape{13, 4, 16, 4, 4, 40, 3, 0, 3},
        Shape{14, 8, 64, 5, 9, 60, 5, 16, 7}, Shape{15, 16, 128, 20, 24, 50, 30, 64, 2},
        Shape{16, 1, 16, 3, 3, 30, 2, 0, 0, 1}, Shape{17, 4, 16, 4, 4, 40, 3, 0, 3, 4},
        Shape{18, 8, 64, 5, 9, 60, 5, 16, 0, 13}, Shape{19, 16, 128, 20, 24, 50, 30, 64, 2, 40},
        Shape{20, 1, 16, 3, 3, 30, 2, 0, 0, 0, 2}, Shape{21, 4, 16, 4, 4, 40, 3, 0, 0, 0, 8},
        Shape{22, 8, 64, 5, 40, 60, 5, 0, 0, 0, 32}, Shape{23, 16, 512, 20, 24, 50, 30, 0, 0, 0, 200},
        Shape{24, 8, 64, 5, 40, 60, 5, 16, 0, 0, 16}, Shape{25, 16, 128, 20, 24, 50, 30, 64, 0, 0, 40},
        Shape{26, 8, 64, 5, 40, 60, 5, 0, 0, 20, 32}));

// ------------------------------------------------------------------------------------------------------------

/// Runs until nothing is left; every answer has `answer` tokens. Returns the requests in the order of their
/// ends.
std::vector<RequestId> run_all(Owner& scheduler, int64_t answer) {
  std::vector<RequestId> order;
  std::map<RequestId, int64_t> written;
  while (true) {
    const auto chunks = scheduler.plan();
    if (chunks.empty()) return order;
    std::vector<RequestId> draws;
    for (const Chunk& chunk : chunks)
      if (chunk.last()) draws.push_back(chunk.sequence->id);
    scheduler.computed(0.01);
    for (const RequestId id : draws) {
      if (++written[id] == answer) {
        scheduler.remove(id);
        order.push_back(id);
      } else {
        scheduler.append(id, 1);
      }
    }
  }
}

TEST(Scheduler, ClientsTakeTurns) {
  Owner scheduler({256, 1, 64, 4, 0.1});
  for (RequestId id = 1; id <= 4; ++id) scheduler.add(id, Tokens(10, static_cast<int32_t>(id)), "busy");
  scheduler.add(5, Tokens(10, 5), "calm");
  scheduler.add(6, Tokens(10, 6), "third");
  EXPECT_EQ(run_all(scheduler, 3), (std::vector<RequestId>{1, 5, 6, 2, 3, 4}));
}

TEST(Scheduler, DeepPromptsAreReadInLargerSteps) {
  Owner scheduler({16384, 2, 2048, 512, 0.1, 512});
  scheduler.add(1, Tokens(9000, 1), "");
  std::vector<int64_t> steps;
  for (int64_t read = 0; read < 9000; read += steps.back()) {
    const auto chunks = scheduler.plan();
    ASSERT_EQ(chunks.size(), 1u);
    ASSERT_EQ(chunks[0].first, read);
    steps.push_back(chunks[0].rows);
    scheduler.computed(1);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{512, 512, 512, 768, 1152, 1728, 2048, 1768}));
  // Who comes to it does not wait for such steps, neither with a prompt nor with an answer.
  scheduler.append(1, 1);
  scheduler.remove(1);
  scheduler.add(2, Tokens(9000, 2), "");
  for (int i = 0; i < 5; ++i) scheduler.plan(), scheduler.computed(1);
  EXPECT_EQ(scheduler.sequence(2).pages.rows, 512 + 512 + 512 + 768 + 1152);
  scheduler.add(3, Tokens(100, 3), "");
  const auto both = scheduler.plan();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].rows + both[1].rows, 512);
  scheduler.computed(1);
  scheduler.append(3, 1);
  EXPECT_LT(scheduler.plan().back().rows, 512);
}

TEST(Scheduler, LongStepsHaveNoMoreRowsThanTheyHaveTimeFor) {
  const auto steps = [](double row_seconds, double most_seconds) {
    Owner scheduler({16384, 2, 2048, 512, 0.1, 1024, 64, most_seconds});
    scheduler.add(1, Tokens(9000, 1), "");
    std::vector<int64_t> rows;
    while (scheduler.sequence(1).uncomputed() > 0) {
      const auto chunks = scheduler.plan();
      rows.push_back(chunks[0].rows);
      EXPECT_TRUE(scheduler.long_step());
      scheduler.computed(static_cast<double>(rows.back()) * row_seconds);
    }
    return rows;
  };
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(steps(0.01, 0), (Rows{1024, 1024, 1024, 1536, 2048, 2048, 296}));
  EXPECT_EQ(steps(0.001, 5), (Rows{512, 1024, 1024, 1280, 1920, 2048, 1192})) << "there is time for all";
  EXPECT_EQ(steps(0.004, 5), (Rows{512, 1024, 1024, 1216, 1216, 1216, 1216, 1216, 360}));
  EXPECT_EQ(steps(0.02, 5).front(), 512);
  EXPECT_EQ(steps(0.02, 5).size(), 18u) << "512 rows in any case";
}

TEST(Scheduler, WhoIsScoredSharesTheOutputs) {
  Owner scheduler({16384, 8, 512, 512, 1.0, 0, 64, 0, 0, 34});
  using Rows = std::map<RequestId, int64_t>;
  const auto rows = [](std::span<const Chunk> chunks) {
    Rows of;
    for (const Chunk& chunk : chunks) of[chunk.sequence->id] = chunk.rows;
    return of;
  };
  scheduler.add(1, Tokens(20, 1), "");
  scheduler.plan(), scheduler.computed(0.1);
  scheduler.append(1, 1);
  scheduler.add(2, Tokens(200, 2), "", true, 0);
  scheduler.add(3, Tokens(200, 3), "", true, 0);
  // Outputs of the answer, of the last rows of both, and 31 more.
  EXPECT_EQ(rows(scheduler.plan()), (Rows{{1, 1}, {2, 16}, {3, 17}}));
  EXPECT_FALSE(scheduler.long_step()) << "such a step is short";
  // A long prompt beside them is read in a long step, and they go on aside of it.
  scheduler.computed(0.1);
  scheduler.append(1, 1);
  for (const RequestId id : {2, 3}) scheduler.score(id, id == 2 ? 16 : 17);
  scheduler.add(4, Tokens(1000, 4), "");
  EXPECT_EQ(rows(scheduler.plan()), (Rows{{4, 512}}));
  EXPECT_TRUE(scheduler.long_step());
  EXPECT_EQ(rows(scheduler.plan_aside()), (Rows{{1, 1}, {2, 17}, {3, 16}}));
  scheduler.computed_aside(0.1);
  scheduler.computed(1);
  scheduler.check();
}

TEST(Scheduler, WhatIsScoredIsComputedAlsoWhereItIsCached) {
  Owner scheduler({512, 2, 512, 16, 0.1});
  scheduler.add(1, Tokens(300, 1), "");
  scheduler.plan(), scheduler.computed(1);
  scheduler.remove(1);
  scheduler.add(2, Tokens(300, 1), "", true, 0);
  EXPECT_EQ(scheduler.plan().front().rows, 300);
  scheduler.computed(1);
  scheduler.remove(2);
  scheduler.add(3, Tokens(300, 1), "", true, 130);  // as after it has given way
  EXPECT_EQ(scheduler.plan().front().first, 128) << "whole pages";
  EXPECT_EQ(scheduler.sequence(3).cached_tokens, 128);
  scheduler.computed(1);
  scheduler.remove(3);
  scheduler.add(4, Tokens(300, 1), "");
  EXPECT_EQ(scheduler.plan().back().rows, 1) << "and others find it";
  scheduler.check();
}

TEST(Scheduler, WhoNeedsLittleGoesAsideOfALongStep) {
  Owner scheduler({16384, 8, 512, 512, 1.0, 0, 64});
  const auto rows = [](std::span<const Chunk> chunks) {
    std::map<RequestId, int64_t> of;
    for (const Chunk& chunk : chunks) of[chunk.sequence->id] = chunk.rows;
    return of;
  };
  using Rows = std::map<RequestId, int64_t>;
  scheduler.add(1, Tokens(20, 1), "");
  scheduler.add(2, Tokens(30, 2), "");
  EXPECT_EQ(rows(scheduler.plan()), (Rows{{1, 20}, {2, 30}}));
  EXPECT_FALSE(scheduler.long_step()) << "such a step is short";
  scheduler.computed(0.1);
  for (const RequestId id : {1, 2}) scheduler.append(id, 1);
  // With long prompts short ones go aside, as many as there is room for beside those who write.
  const int64_t lengths[] = {1000, 40, 30, 70};
  for (RequestId id = 3; const int64_t length : lengths)
    scheduler.add(id, Tokens(static_cast<size_t>(length), static_cast<int32_t>(id)), ""), ++id;
  EXPECT_EQ(rows(scheduler.plan()), (Rows{{3, 512 - 70 - 40}, {4, 40}, {6, 70}}));
  EXPECT_TRUE(scheduler.long_step());
  EXPECT_EQ(rows(scheduler.plan_aside()), (Rows{{1, 1}, {2, 1}, {5, 30}}));
  scheduler.computed_aside(0.1);
  for (const RequestId id : {1, 2, 5}) scheduler.append(id, 1);
  EXPECT_NEAR(scheduler.long_step_seconds(0.1), 0.4, 1e-9) << "a fifth of the time is for answers";
  EXPECT_NEAR(scheduler.long_step_seconds(0.4), 0.6, 1e-9) << "with the step aside max_itl";
  EXPECT_NEAR(scheduler.long_step_seconds(2), 0.5, 1e-9) << "and some of the time in any case";
  // Who comes now waits for nobody, if it is short.
  scheduler.add(7, Tokens(5, 7), "");
  scheduler.add(8, Tokens(900, 8), "");
  EXPECT_EQ(rows(scheduler.plan_aside()).count(7), 1u);
  EXPECT_EQ(rows(scheduler.plan_aside()).count(8), 0u);
  scheduler.computed_aside(0.1);
  scheduler.computed(5);
  EXPECT_FALSE(scheduler.long_step());
  EXPECT_EQ(scheduler.sequence(6).uncomputed(), 0);
  scheduler.check();
}

TEST(Scheduler, ADraftIsForOnePlan) {
  Owner scheduler({256, 3, 16, 6, 1.0, 0, 8, 0, 4});
  scheduler.add(1, Tokens(64, 1), "");
  while (scheduler.sequence(1).uncomputed() > 0) scheduler.plan(), scheduler.computed(0.1);
  scheduler.append(1, 1);
  scheduler.draft(1, 3);
  scheduler.add(2, Tokens(180, 2), "");
  EXPECT_EQ(scheduler.plan().front().drafts, 0) << "a prompt is read";
  ASSERT_TRUE(scheduler.long_step());
  scheduler.draft(1, 3);
  const auto aside = scheduler.plan_aside();
  ASSERT_EQ(aside.size(), 1u);
  EXPECT_EQ(aside.front().drafts, 3) << "not aside";
  scheduler.computed_aside(0.1);
  for (int32_t i = 0; i < 2; ++i) {
    scheduler.append(1, 1);
    scheduler.accept(1);
  }
  EXPECT_EQ(scheduler.sequence(1).pages.rows, 67);
  scheduler.append(1, 2);
  EXPECT_EQ(scheduler.plan_aside().front().drafts, 0) << "it was for that one";
  scheduler.check();
}

TEST(Scheduler, NobodyOvertakesWhoWaitsForPages) {
  Owner scheduler({512, 4, 64, 8, 0.1});
  scheduler.add(1, Tokens(200, 1), "a");
  scheduler.plan();
  scheduler.computed(0.01);
  scheduler.add(2, Tokens(400, 2), "b");  // seven pages, while the first has four of eight
  scheduler.add(3, Tokens(10, 3), "c");
  scheduler.plan();
  EXPECT_EQ(scheduler.running().size(), 1u);
  EXPECT_EQ(scheduler.waiting(), 2);
  scheduler.computed(0.01);
  scheduler.remove(1);
  scheduler.plan();
  EXPECT_TRUE(scheduler.sequence(2).place >= 0);
}

TEST(Scheduler, PromptsThatBeginAlikeAreReadOnce) {
  Owner scheduler({1024, 8, 128, 64, 0.1});
  Tokens prompt(700, 1);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 50);
  for (RequestId id = 1; id <= 5; ++id) {
    Tokens own = prompt;
    own.push_back(static_cast<int32_t>(100 + id));
    scheduler.add(id, own, "");
  }
  scheduler.add(6, Tokens(100, 9), "");
  scheduler.plan();
  ASSERT_EQ(scheduler.running().size(), 2u) << "four wait for the first one's pages and let the last pass";
  EXPECT_EQ(scheduler.running()[1]->id, 6u);
  scheduler.computed(0.01);
  int64_t rows = 128;
  while (true) {
    const auto chunks = scheduler.plan();
    for (const Chunk& chunk : chunks) rows += chunk.rows;
    std::vector<RequestId> ready;
    for (const Chunk& chunk : chunks)
      if (chunk.last()) ready.push_back(chunk.sequence->id);
    scheduler.computed(0.01);
    for (const RequestId id : ready) scheduler.append(id, 1);
    if (scheduler.waiting() == 0 && std::ranges::all_of(scheduler.running(), [](const Sequence* s) {
          return std::ssize(s->tokens) > s->prompt_tokens;
        }))
      break;
  }
  for (RequestId id = 2; id <= 5; ++id) EXPECT_EQ(scheduler.sequence(id).cached_tokens, 640);
  EXPECT_LT(rows, 701 + 4 * 61 + 100 + 200);
}

TEST(Scheduler, TheOldestKeepsItsPagesAndThePreemptedComeBackFirst) {
  Owner scheduler({256, 4, 64, 4, 10});
  scheduler.add(1, Tokens(60, 1), "a");
  scheduler.add(2, Tokens(60, 2), "b");
  std::vector<RequestId> order = run_all(scheduler, 150);
  EXPECT_EQ(order, (std::vector<RequestId>{1, 2}));
  EXPECT_GE(scheduler.preemptions(), 1);
}

// ------------------------------------------------------------------------------------------------------------

/// A machine whose steps take a known time.
struct Machine {
  const char* name;
  double step, answer_row, prompt_row, per_context_row;  // seconds
  int64_t max_rows;
  double max_itl;
  int64_t group = 1;         // rows whose attention takes as long as that of fewer
  double hiccups = 0;        // share of steps that take 1.3 times as long
  double prompt_step = 0;    // seconds of a step with prompts more
  double beside_prompt = 1;  // of what an answer's row takes otherwise
  int64_t aside_rows = 0;    // 0: its steps do not pause
};

struct Reading {
  double prompt_rows_per_second, p99;
};

/// Reads a prompt of 16k beside some answers; `streams` 0: alone.
Reading read_prompt(const Machine& machine, int32_t streams) {
  constexpr int64_t kPrompt = 16384;
  std::mt19937 random(1);
  Owner scheduler({32768, streams + 1, machine.max_rows, 2048, machine.max_itl, 0, machine.aside_rows});
  for (int32_t i = 0; i < streams; ++i)
    scheduler.add(static_cast<RequestId>(i) + 10, Tokens(200, i + 10), "");
  const auto step_seconds = [&](std::span<const Chunk> chunks) {
    const bool prompts = std::ranges::any_of(chunks, [](const Chunk& chunk) { return chunk.rows > 1; });
    double seconds = machine.step + (prompts ? machine.prompt_step : 0);
    for (const Chunk& chunk : chunks) {
      const int64_t group = chunk.rows == 1 ? 1 : machine.group;
      const int64_t whole_groups = (chunk.rows + group - 1) / group, middle = chunk.first + chunk.rows / 2;
      const auto rows = static_cast<double>(whole_groups * group);
      const double answer_row = machine.answer_row * (prompts ? machine.beside_prompt : 1);
      seconds += static_cast<double>(chunk.rows) * (chunk.rows == 1 ? answer_row : machine.prompt_row);
      seconds += rows * machine.per_context_row * static_cast<double>(middle);
    }
    if (static_cast<double>(random() % 1000) < 1000 * machine.hiccups) seconds *= 1.3;
    return seconds * (0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000);
  };
  bool read = false;
  const auto answer = [&](std::span<const Chunk> chunks) {
    std::vector<RequestId> draws;
    for (const Chunk& chunk : chunks)
      if (chunk.last()) draws.push_back(chunk.sequence->id);
    return [&scheduler, &read, draws] {
      for (const RequestId id : draws) scheduler.append(id, 1), read |= id == 1;
    };
  };
  std::vector<double> gaps;
  double reading = 0;
  const auto took = [&](int step, double seconds) {
    if (step < 50) return;  // the answers' own prompts
    gaps.push_back(seconds);
    reading += seconds;
  };
  for (int step = 0; step < 100000 && !read; ++step) {
    if (step == 50) {
      Tokens prompt(kPrompt);
      for (int64_t i = 0; i < kPrompt; ++i) prompt[static_cast<size_t>(i)] = static_cast<int32_t>(i % 1000);
      scheduler.add(1, prompt, "");
    }
    const auto chunks = scheduler.plan();
    if (chunks.empty()) continue;
    const double seconds = step_seconds(chunks);
    double left = seconds;
    while (scheduler.long_step() && left > 0) {
      const auto aside = scheduler.plan_aside();
      if (aside.empty()) break;
      const double aside_seconds = step_seconds(aside);
      const auto append = answer(aside);
      scheduler.computed_aside(aside_seconds);
      append();
      const double share = std::min(left, scheduler.long_step_seconds(aside_seconds));
      left -= share;
      took(step, aside_seconds + share);
    }
    const auto append = answer(chunks);
    scheduler.computed(seconds);
    append();
    if (left == seconds) took(step, seconds);
  }
  EXPECT_TRUE(read) << "the prompt was never read";
  std::sort(gaps.begin(), gaps.end());
  return {kPrompt / reading, gaps[gaps.size() * 99 / 100]};
}

TEST(Scheduler, APromptIsReadQuicklyWithoutStallingAnswers) {
  const Machine machines[] = {
      {"GPU", 6e-3, 0.2e-3, 40e-6, 1e-9, 2048, 0.1},
      {"CPU", 60e-3, 5e-3, 4e-3, 40e-9, 512, 1.0},
      {"fast GPU", 3e-3, 0.1e-3, 12e-6, 0.5e-9, 512, 0.1},
      // What two cores measured: most of a long prompt's time is attention, for 16 rows on one core, 32 on
      // both.
      {"slow CPU", 50e-3, 1e-3, 2.2e-3, 0.4e-6, 512, 0.5, 32, 0.03},
      // What an H200 measured of GLM-4.7-Flash: steps of many rows cost what they cost, a row little, and the
      // last rows of the prompt three times as much as the first.
      {"H200", 1.4e-3, 0.6e-3, 26e-6, 2.5e-9, 1024, 0.1, 1, 0, 36e-3, 0.4},
      {"CPU with steps that pause", 50e-3, 4e-3, 9e-3, 0.4e-6, 512, 1.0, 1, 0.03, 0, 1, 64},
  };
  for (const Machine& machine : machines) {
    const double alone = read_prompt(machine, 0).prompt_rows_per_second;
    for (const int32_t streams : {1, 32}) {
      const Reading beside = read_prompt(machine, streams);
      std::printf(
          "%s, %d streams: prompt at %.0f rows/s, %.0f%% of alone; p99 between tokens %.0f ms of %.0f\n",
          machine.name, streams, beside.prompt_rows_per_second, 100 * beside.prompt_rows_per_second / alone,
          1e3 * beside.p99, 1e3 * machine.max_itl);
      EXPECT_GE(beside.prompt_rows_per_second, 0.7 * alone) << machine.name << ", " << streams;
      // Whatever is aimed at, a step may be held up.
      EXPECT_LE(beside.p99, machine.max_itl * (machine.hiccups > 0 ? 1.3 : 1))
          << machine.name << ", " << streams;
    }
  }
}

/// Steps of a scheduler whose sequences write on and on; those that have written so much end.
struct Crowd {
  Owner scheduler;
  std::map<RequestId, std::string> clients;
  void add(RequestId id, const std::string& client, int64_t prompt = 5, uint64_t call = 0) {
    clients[id] = client;
    Tokens tokens(static_cast<size_t>(prompt), static_cast<int32_t>(id));
    scheduler.add(id, std::move(tokens), client, true, Sequence::kNoScores, call != 0 ? call : id);
  }
  void step() {
    std::vector<RequestId> drawn;
    for (const Chunk& chunk : scheduler.plan())
      if (chunk.last()) drawn.push_back(chunk.sequence->id);
    scheduler.check();
    scheduler.computed(1e-3);
    for (const RequestId id : drawn) scheduler.append(id, 1);
  }
  std::map<std::string, int> running() {
    std::map<std::string, int> count;
    for (const Sequence* sequence : scheduler.running()) ++count[sequence->client];
    return count;
  }
};
using Running = std::map<std::string, int>;

TEST(Scheduler, ClientsShareThePlacesThatRun) {
  Crowd crowd{Owner({1024, 8, 64, 200, 0.1}), {}};
  for (RequestId id = 1; id <= 20; ++id) crowd.add(id, "many");
  crowd.step();
  EXPECT_EQ(crowd.running(), (Running{{"many", 8}}));
  crowd.add(100, "one");
  crowd.step();
  EXPECT_EQ(crowd.running(), (Running{{"many", 7}, {"one", 1}})) << "in the step that it came before";
  for (RequestId id = 101; id < 110; ++id) crowd.add(id, "one");
  crowd.step();
  EXPECT_EQ(crowd.running(), (Running{{"many", 4}, {"one", 4}}));
  crowd.add(200, "third");
  crowd.add(201, "third");
  crowd.add(202, "third");
  for (int i = 0; i < 5; ++i) crowd.step();
  Running three = crowd.running();
  EXPECT_EQ(three["third"], 2);
  EXPECT_EQ(three["many"] + three["one"], 6);
  EXPECT_EQ(three["many"], three["one"]);
  const int64_t moved = crowd.scheduler.preemptions();
  for (int i = 0; i < 50; ++i) crowd.step();
  EXPECT_EQ(crowd.scheduler.preemptions(), moved) << "and then nobody is moved to and fro";
  // Who gave way goes on where it was: its rows are cached.
  for (const RequestId id : {200, 201, 202}) crowd.scheduler.remove(id);
  for (RequestId id = 100; id < 110; ++id) crowd.scheduler.remove(id);
  crowd.step();
  EXPECT_EQ(crowd.running(), (Running{{"many", 8}}));
  for (const Sequence* sequence : crowd.scheduler.running()) EXPECT_LE(sequence->uncomputed(), 1);
}

TEST(Scheduler, ClientsShareThePagesThatRun) {
  // 16 pages; each sequence of "many" takes 4 of them, all four together every page.
  Crowd crowd{Owner({1024, 8, 512, 16, 0.1}), {}};
  for (RequestId id = 1; id <= 5; ++id) crowd.add(id, "many", 200);
  for (int i = 0; i < 10; ++i) crowd.step();
  EXPECT_EQ(crowd.running()["many"], 3) << "one page a sequence is kept for what they write";
  crowd.add(100, "one", 300);
  for (int i = 0; i < 3; ++i) crowd.step();
  EXPECT_EQ(crowd.running()["one"], 1);
  EXPECT_GE(crowd.running()["many"], 1);
}

TEST(Scheduler, OfOneClientTheCallWithMostGivesWayWhenPagesRunOut) {
  Crowd crowd{Owner({1024, 8, 512, 24, 0.1}), {}};
  for (RequestId id = 1; id <= 5; ++id) crowd.add(id, "", 5, 7);
  for (int i = 0; i < 20; ++i) crowd.step();
  crowd.add(100, "", 5, 8);  // the last to come
  for (int i = 0; i < 500; ++i) crowd.step();
  EXPECT_GT(crowd.scheduler.preemptions(), 0);
  EXPECT_EQ(crowd.scheduler.sequence(100).preemptions, 0);
  EXPECT_EQ(crowd.scheduler.sequence(1).preemptions, 0) << "nor is who came first";
}

TEST(Scheduler, OneClientAloneIsNeverMoved) {
  Crowd crowd{Owner({1024, 4, 64, 200, 0.1}), {}};
  for (RequestId id = 1; id <= 20; ++id) crowd.add(id, "");
  for (int i = 0; i < 20; ++i) crowd.step();
  EXPECT_EQ(crowd.scheduler.preemptions(), 0);
  EXPECT_FALSE(crowd.scheduler.owes());
}

TEST(KvCache, GroupsFindNothingOfEachOther) {
  constexpr PrefixGroup kAlice{1, 1}, kMallory{2, 2};
  constexpr PrefixGroup kSharing{0, 1}, kSharingToo{0, 2};  // whole pages, but no ends
  const Tokens tokens(200, 7);
  KvCache cache(32);
  const auto keep = [&](const PrefixGroup& group) {
    SequencePages pages = cache.open(tokens, group);
    const int64_t found = pages.rows;
    EXPECT_TRUE(cache.grow(pages, std::ssize(tokens)));
    cache.computed(pages, tokens, std::ssize(tokens));
    cache.close(pages, tokens);
    return found;
  };
  EXPECT_EQ(keep(kAlice), 0);
  EXPECT_EQ(cache.offer(tokens, 200, kMallory).rows, 0);
  EXPECT_EQ(keep(kMallory), 0);
  EXPECT_EQ(keep(kAlice), 199);
  EXPECT_EQ(keep(kSharing), 0);
  EXPECT_EQ(keep(kSharingToo), 192) << "the end is not matched";
  EXPECT_EQ(keep(kSharingToo), 199);
  EXPECT_EQ(keep(kSharing), 199);
  cache.check({});
}

}  // namespace
}  // namespace sluice::engine
