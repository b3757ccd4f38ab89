// Drafts: what is found in a sequence to go on with, how much of it is worth its time, and that no answer
// depends on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "engine/batcher.h"
#include "engine/draft_pace.h"
#include "engine/prompt_lookup.h"
#include "support/recorder.h"
#include "support/script_executable.h"

namespace sluice::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens found(PromptLookup& lookup, const Tokens& tokens) {
  lookup.look(tokens);
  return {lookup.found().begin(), lookup.found().end()};
}

TEST(PromptLookup, FindsWhatFollowedTheLastTokensBefore) {
  PromptLookup lookup;
  EXPECT_EQ(found(lookup, {}), Tokens());
  EXPECT_EQ(found(lookup, {1}), Tokens());
  EXPECT_EQ(found(lookup, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1}), Tokens()) << "one token says nothing";
  EXPECT_EQ(found(lookup, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2}), Tokens({3, 4, 5, 6, 7, 8, 9}));
  PromptLookup fresh;
  EXPECT_EQ(found(fresh, {1, 2, 3, 9, 1, 2}), Tokens({3, 9, 1, 2, 3, 9, 1})) << "and it goes on repeating";
}

TEST(PromptLookup, TakesThePlaceThatAgreesLongest) {
  PromptLookup lookup;
  EXPECT_EQ(found(lookup, {5, 6, 7, 8, 20, 21, 22, 23, 7, 8, 30, 31, 32, 33, 5, 6, 7, 8}).front(), 20);
}

TEST(PromptLookup, GoesOnCopyingBehindATokenThatWasReplaced) {
  Tokens tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(100 + i);
  tokens.insert(tokens.end(), {110, 111, 7, 7});  // elsewhere the same two tokens are followed by others
  tokens.insert(tokens.end(), {100, 101, 102, 103});
  PromptLookup lookup;
  EXPECT_EQ(found(lookup, tokens).front(), 104);
  tokens.insert(tokens.end(), {104, 105, 106, 107, 108, 999});
  EXPECT_EQ(found(lookup, tokens), Tokens());
  tokens.insert(tokens.end(), {110, 111});
  EXPECT_EQ(found(lookup, tokens).front(), 112);
}

TEST(PromptLookup, APredictionIsLookedUpThoughNobodySaidIt) {
  PromptLookup lookup({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(found(lookup, {50, 51}), Tokens());
  EXPECT_EQ(found(lookup, {50, 51, 3, 4}), Tokens({5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(found(lookup, {50, 51, 3, 4, 5, 6, 70}), Tokens());
  EXPECT_EQ(found(lookup, {50, 51, 3, 4, 5, 6, 70, 8, 9}).front(), 10);
}

// Against a search of the whole sequence: what is found did follow the same tokens, and something is found
// whenever the last four tokens stood there before.
TEST(PromptLookup, FindsWhatASearchFinds) {
  std::mt19937 random(5);
  for (const uint32_t vocabulary : {2u, 4u, 30u, 1000u}) {
    PromptLookup lookup;
    Tokens tokens;
    int hits = 0, known = 0;
    for (int step = 0; step < 1500; ++step) {
      for (uint32_t more = 1 + random() % 3; more > 0; --more) {
        const bool copies = tokens.size() > 50 && random() % 8 > 0;
        tokens.push_back(copies ? tokens[tokens.size() - 37] : static_cast<int32_t>(random() % vocabulary));
      }
      lookup.look(tokens);
      const auto follows = [&tokens](size_t place, size_t agreeing) {
        return std::equal(tokens.end() - static_cast<std::ptrdiff_t>(agreeing), tokens.end(),
                          tokens.begin() + static_cast<std::ptrdiff_t>(place - agreeing));
      };
      bool right = false, stood = false;
      for (size_t place = 2; place < tokens.size(); ++place) {
        right |= follows(place, 2) && !lookup.found().empty() && tokens[place] == lookup.found()[0];
        stood |= place >= 4 && follows(place, 4);
      }
      ASSERT_EQ(right, !lookup.found().empty());
      known += stood;
      hits += stood && right;
      ASSERT_EQ(lookup.found().size(), lookup.chances().size());
      for (const double chance : lookup.chances()) ASSERT_TRUE(chance > 0 && chance < 1) << chance;
    }
    // A slot of a table may be somebody else's; there are twice as many as places.
    EXPECT_GE(hits, known * 9 / 10) << vocabulary;
    EXPECT_GT(known, 300) << vocabulary;
  }
}

TEST(PromptLookup, LearnsHowOftenItIsRight) {
  std::mt19937 random(6);
  PromptLookup copies, scatters;
  Tokens copied, scattered;
  for (int i = 0; i < 2000; ++i) {
    copied.push_back(i % 50);
    scattered.push_back(static_cast<int32_t>(random() % 8));
    copies.look(copied);
    scatters.look(scattered);
  }
  ASSERT_FALSE(copies.found().empty() || scatters.found().empty());
  EXPECT_GT(copies.chances()[0], 0.99);
  EXPECT_LT(scatters.chances()[0], 0.35) << "one of eight is right";
}

/// The lengths that are chosen for drafts of these chances.
std::vector<int64_t> chosen(const DraftPace& pace, const std::vector<std::vector<double>>& chances,
                            int64_t most_rows = DraftPace::kMostRows) {
  std::vector<Draft> drafts(chances.size());
  std::ranges::transform(chances, drafts.begin(), [](const auto& of) { return Draft{of}; });
  pace.choose(drafts, most_rows);
  std::vector<int64_t> lengths(chances.size());
  std::ranges::transform(drafts, lengths.begin(), &Draft::length);
  return lengths;
}

TEST(DraftPace, ChoosesTheLengthsOfMostTokensASecond) {
  const std::vector<double> sure(7, 0.95), unlikely(7, 0.1);
  using Lengths = std::vector<int64_t>;
  DraftPace pace;
  EXPECT_EQ(chosen(pace, {sure}), Lengths({0})) << "nothing is known yet";
  const auto seconds = [](int64_t rows) { return 0.7 + 0.3 * static_cast<double>(rows); };
  for (int i = 0; i < 50; ++i)
    for (int64_t rows = 1; rows <= 8; ++rows) pace.observe(rows, seconds(rows));
  EXPECT_EQ(chosen(pace, {unlikely}), Lengths({0}));
  EXPECT_EQ(chosen(pace, {sure}, 4), Lengths({3}));
  EXPECT_EQ(chosen(pace, {{}, sure}).front(), 0);
  EXPECT_EQ(chosen(pace, std::vector(8, sure)), Lengths(8, 0)) << "no row is left";
  EXPECT_EQ(chosen(pace, {}), Lengths());
  // Against all lengths that there are, for three answers.
  std::mt19937 random(8);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::vector<double>> chances(3);
    for (std::vector<double>& of : chances)
      for (uint32_t n = random() % 8; n > 0; --n)
        of.push_back(0.05 + 0.9 * static_cast<double>(random() % 100) / 100);
    const auto rate = [&](const Lengths& lengths) {
      double tokens = 3;
      int64_t rows = 3;
      for (size_t i = 0; i < 3; ++i) {
        double chance = 1;
        for (size_t at = 0; at < static_cast<size_t>(lengths[i]); ++at, ++rows)
          tokens += chance *= chances[i][at];
      }
      return tokens / seconds(rows);
    };
    const auto most = [&](size_t i) { return std::ssize(chances[i]); };
    double best = 0;
    for (int64_t a = 0; a <= most(0); ++a)
      for (int64_t b = 0; b <= most(1); ++b)
        for (int64_t c = 0; c <= most(2) && a + b + c <= 5; ++c) best = std::max(best, rate({a, b, c}));
    ASSERT_GT(rate(chosen(pace, chances)), 0.96 * best) << "rows are not added for next to nothing";
  }
}

TEST(DraftPace, TriesWhatItDoesNotKnowAndAgainWhatItHasNotSeenForLong) {
  const std::vector<double> likely(7, 0.8);
  DraftPace pace;
  pace.observe(1, 1.0);
  EXPECT_EQ(chosen(pace, {likely}).front(), 7) << "hopes";
  pace.observe(8, 8.0);
  EXPECT_EQ(chosen(pace, {likely}).front(), 0) << "knows, and what is between is as slow";
  // Tokens a second in 2000 steps, of what one row a step would have.
  const auto gain = [&](double first, double further) {
    double tokens = 0, seconds = 0;
    for (int step = 0; step < 2000; ++step) {
      const int64_t rows = 1 + chosen(pace, {likely}).front();
      const double took = first + further * static_cast<double>(rows - 1);
      pace.observe(rows, took);
      seconds += took;
      tokens += (1 - std::pow(0.8, static_cast<double>(rows))) / (1 - 0.8);
    }
    return tokens / seconds * first;
  };
  EXPECT_GT(gain(1, 1), 0.98) << "to try in vain costs little";
  EXPECT_GT(gain(1, 0.1), 2.3) << "now it is worth it";
  EXPECT_GT(gain(1, 1), 0.97) << "and now no longer, which is believed step by step";
  EXPECT_GT(gain(1, 0.4), 1.25);
}

// One in fifty, four times as long.
TEST(DraftPace, StepsThatAreHeldUpMisleadLittle) {
  const std::vector<double> likely(7, 0.8);
  // Tokens a second beside those of one row a step, where a further row costs so much of the first one.
  const auto gain = [&](double further, bool held_up) {
    std::mt19937 random(9);
    DraftPace pace;
    double tokens = 0, seconds = 0;
    for (int step = 0; step < 6000; ++step) {
      // At times there is nothing to look up for a while, and what was known is long ago.
      const bool nothing = step % 300 < 100;
      const int64_t rows = nothing ? 1 : 1 + chosen(pace, {likely}).front();
      const double even = 1 + further * static_cast<double>(rows - 1);
      pace.observe(rows, held_up && random() % 50 == 0 ? 4 * even : even);
      if (nothing) continue;
      seconds += even;
      tokens += (1 - std::pow(0.8, static_cast<double>(rows))) / (1 - 0.8);
    }
    return tokens / seconds;
  };
  EXPECT_GT(gain(0.1, false), 2.4);
  EXPECT_GT(gain(1, false), 0.98);
  for (const double further : {0.1, 0.4, 1.0})
    EXPECT_GT(gain(further, true), 0.95 * gain(further, false)) << further;
}

// Where rows that were right have to be computed once more behind one that was wrong: what each token costs
// so is part of the choice.
TEST(DraftPace, KnowsWhatReplaysCost) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform;
  // Tokens for the time of a step of one row, where a further row costs so much of it.
  const auto rate = [&](double chance, double further, bool replays) {
    const std::vector<double> chances(7, chance);
    DraftPace pace;
    double tokens = 0, seconds = 0;
    int64_t again = 0;
    for (int step = 0; step < 4000; ++step) {
      std::vector<Draft> drafts = {{.chances = chances, .rows = 1 + again}};
      pace.choose(drafts, DraftPace::kMostRows, replays);
      const int64_t length = drafts[0].length, rows = 1 + again + length;
      const double took = 1 + further * static_cast<double>(rows - 1);
      pace.observe(rows, took);
      seconds += took;
      int64_t right = 0;
      while (right < length && uniform(random) < chance) ++right;
      tokens += static_cast<double>(1 + right);
      again = right < length ? again + 1 + right : 0;
    }
    return tokens / seconds;
  };
  for (const double further : {0.1, 0.3, 0.6, 1.0}) {
    for (const double chance : {0.2, 0.5, 0.7, 0.9, 0.99}) {
      const double with = rate(chance, further, true);
      EXPECT_GT(with, 0.97) << chance << ", " << further << ": less than without drafts";
      EXPECT_GT(with, 0.96 * rate(chance, further, false)) << chance << ", " << further;
    }
  }
  EXPECT_GT(rate(0.5, 0.4, true), 1.02 * rate(0.5, 0.4, false)) << "short drafts, or none";
  EXPECT_GT(rate(0.95, 0.1, true), 2.5);
}

/// Says a text, however many rows of it are in a step: what follows a token is told by its position.
class Reciter : public test::Speaker {
 public:
  Reciter(std::string text, int64_t prompt) : text_(std::move(text)), prompt_(prompt) {}
  void run(const program::Step& step, Said& said) override {
    const program::StepInput& input = step.input;
    ++steps;
    rows += input.rows();
    most_outputs = std::max(most_outputs, input.outputs());
    for (int64_t i = 0; i < input.outputs(); ++i) {
      const auto row = static_cast<size_t>(input.output_rows[static_cast<size_t>(i)]);
      put(said, i, text_, static_cast<size_t>(input.positions[row] + 1 - prompt_));
    }
  }
  int64_t steps = 0, rows = 0, most_outputs = 0;

 private:
  std::string text_;
  int64_t prompt_;
};

struct Replay {
  std::string text;
  Result result;
  int64_t steps, rows, most_outputs;
};

Replay replay(const std::string& text, Request request, int64_t draft_tokens, int64_t context = 1000) {
  Reciter reciter(text, std::ssize(request.prompt));
  const text::Tokenizer tokenizer = test::byte_tokenizer();
  Batcher batcher(reciter, tokenizer,
                  {.context = context,
                   .max_sequences = 1,
                   .max_rows = 64,
                   .pages = KvPool::pages_for(context),
                   .draft_tokens = draft_tokens,
                   .timeless = true});
  request.sampling.temperature = 0;
  const auto listener = std::make_shared<test::Recorder>();
  batcher.add(1, std::move(request), listener, 1);
  while (batcher.step()) {
  }
  return {listener->text, listener->wait(), reciter.steps, reciter.rows, reciter.most_outputs};
}

TEST(Drafts, ARepeatedTextTakesFewerStepsAndIsTheSame) {
  const std::string line = "for (size_t i = 0; i < count; ++i) sum += values[i] * weights[i];\n";
  const Tokens prompt(line.begin(), line.end());
  const Replay with = replay(line + line, {.prompt = prompt}, 7);
  EXPECT_EQ(with.text, line + line);
  EXPECT_EQ(with.result.finish, Finish::EndToken);
  EXPECT_EQ(with.result.generated_tokens, std::ssize(line) * 2 + 1);
  EXPECT_EQ(with.most_outputs, 8);
  EXPECT_LT(with.steps, 50);
  EXPECT_GT(with.result.accepted_tokens, 80);
  EXPECT_EQ(with.rows, with.result.prompt_tokens + (with.steps - 2) + with.result.draft_tokens);
  EXPECT_EQ(with.result.generated_tokens, with.steps - 1 + with.result.accepted_tokens);
  const Replay without = replay(line + line, {.prompt = prompt}, 0);
  EXPECT_EQ(without.text, with.text);
  EXPECT_EQ(without.most_outputs, 1);
  EXPECT_EQ(without.result.draft_tokens + without.result.accepted_tokens, 0);
  EXPECT_EQ(without.steps, 2 * std::ssize(line) + 2);
}

TEST(Drafts, APredictedTextTakesFewerSteps) {
  const std::string text = "The quick brown fox jumps over the lazy dog, and nobody minds it at all.";
  const Tokens said(text.begin(), text.end());
  const Replay plain = replay(text, {.prompt = {'x'}}, 7);
  const Replay predicted = replay(text, {.prompt = {'x'}, .prediction = said}, 7);
  EXPECT_EQ(plain.text, text);
  EXPECT_EQ(predicted.text, text);
  EXPECT_LT(predicted.steps, plain.steps / 2);
}

TEST(Drafts, AnswersEndWhereTheyWould) {
  const std::string abc = "abcdefghijklmnop";
  const Tokens prompt(abc.begin(), abc.end());
  const std::string text = abc + abc + abc;
  for (int64_t most = 1; most < 30; ++most) {
    const Replay some = replay(text, {.prompt = prompt, .max_tokens = most}, 7);
    EXPECT_EQ(some.text, text.substr(0, static_cast<size_t>(most)));
    EXPECT_EQ(some.result.finish, Finish::Length);
    EXPECT_EQ(some.result.generated_tokens, most);
    const Replay full = replay(text, {.prompt = prompt}, 7, 16 + most);
    EXPECT_EQ(full.text, text.substr(0, static_cast<size_t>(most) + 1));
    EXPECT_EQ(full.result.finish, Finish::ContextFull);
  }
  const Replay stopped = replay(text, {.prompt = prompt, .stops = {"fg"}}, 7);
  EXPECT_EQ(stopped.text, "abcde");
  EXPECT_EQ(stopped.result.finish, Finish::StopString);
  EXPECT_EQ(stopped.result.generated_tokens, 7);
}

}  // namespace
}  // namespace sluice::engine
