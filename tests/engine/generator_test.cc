// The pool of cache pages, batches, and the loop from prompt to text, over an executable whose logits are a
// script.
#include "engine/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "base/error.h"
#include "support/script_executable.h"

namespace sluice::engine {
namespace {

TEST(KvPool, GivesEachPageToOneAndTakesThemBack) {
  KvPool pool(10);
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> tables(4);
  for (int step = 0; step < 5000; ++step) {
    auto& table = tables[random() % 4];
    if (random() % 4 == 0) {
      pool.release(table);
    } else {
      const int64_t rows = static_cast<int64_t>(random() % 400);
      const auto before = table;
      const bool fits = KvPool::pages_for(rows) - static_cast<int64_t>(table.size()) <= pool.free_pages();
      ASSERT_EQ(pool.reserve(table, rows), fits);
      if (!fits) {
        ASSERT_EQ(table, before);
      }
    }
    std::multiset<int32_t> taken;
    for (const auto& t : tables) taken.insert(t.begin(), t.end());
    ASSERT_EQ(std::set<int32_t>(taken.begin(), taken.end()).size(), taken.size());
    ASSERT_EQ(static_cast<int32_t>(taken.size()) + pool.free_pages(), 10);
  }
}

TEST(Batch, FindsSlotsThroughThePageTables) {
  Batch batch(8, 2, 3);
  batch.set_pages(0, std::vector<int32_t>{5, 2});
  batch.set_pages(1, std::vector<int32_t>{7});
  batch.add(11, 63, 0, false);
  batch.add(12, 64, 0, true);
  batch.add(13, 0, 1, true);
  const program::StepInput input = batch.input();
  EXPECT_THAT(std::vector<int32_t>(input.slots.begin(), input.slots.end()),
              testing::ElementsAre(5 * 64 + 63, 2 * 64, 7 * 64));
  EXPECT_THAT(std::vector<int32_t>(input.output_rows.begin(), input.output_rows.end()),
              testing::ElementsAre(1, 2));
  EXPECT_EQ(input.slot_of(1, 3), 5 * 64 + 3);
  EXPECT_EQ(input.slot_of(2, 0), 7 * 64);
}

using test::byte_tokenizer;
using test::Script;

struct Outcome {
  std::string text;
  Result result;
};

Outcome generate(Script& script, Request request, int64_t context = 100, int64_t max_rows = 4) {
  const text::Tokenizer tokenizer = byte_tokenizer();
  Generator generator(script, tokenizer, context, max_rows);
  request.sampling.temperature = 0;
  Outcome outcome;
  outcome.result = generator.run(request, [&](std::string_view piece) {
    outcome.text += piece;
    return true;
  });
  return outcome;
}

TEST(Generator, PrefillsInChunksAndGeneratesUntilTheEndToken) {
  Script script("said the f\xC3\xB6x");
  const Outcome outcome = generate(script, {.prompt = {'T', 'h', 'e', ' ', 'e', 'n', 'd'}});
  EXPECT_EQ(outcome.text, "said the f\xC3\xB6x");
  EXPECT_EQ(outcome.result.finish, Finish::EndToken);
  EXPECT_EQ(outcome.result.prompt_tokens, 7);
  EXPECT_EQ(outcome.result.generated_tokens, 14);  // thirteen bytes and the end
  EXPECT_EQ(script.most_rows, 4);
  for (size_t i = 0; i < script.positions.size(); ++i)
    EXPECT_EQ(script.positions[i], static_cast<int32_t>(i));
}

TEST(Generator, HandsOutWholeCharactersOnly) {
  Script script("a\xE4\xBD\xA0z");
  const text::Tokenizer tokenizer = byte_tokenizer();
  Generator generator(script, tokenizer, 100, 4);
  std::vector<std::string> pieces;
  Request request{.prompt = {'x'}};
  request.sampling.temperature = 0;
  generator.run(request, [&](std::string_view piece) {
    if (!piece.empty()) pieces.emplace_back(piece);
    return true;
  });
  EXPECT_THAT(pieces, testing::ElementsAre("a", "\xE4\xBD\xA0", "z"));
}

TEST(Generator, EndsForEachReason) {
  Script length("abcdefgh"), stop("abc END of it"), full("abcdefgh"), none("abc");
  EXPECT_EQ(generate(length, {.prompt = {'x'}, .max_tokens = 3}).text, "abc");
  const Outcome stopped = generate(stop, {.prompt = {'x'}, .stops = {"END", "nothing"}});
  EXPECT_EQ(stopped.text, "abc ");
  EXPECT_EQ(stopped.result.finish, Finish::StopString);
  const Outcome filled = generate(full, {.prompt = {'x', 'y'}}, 5);
  EXPECT_EQ(filled.result.finish, Finish::ContextFull);
  EXPECT_EQ(filled.text, "abcd");  // rows 2 to 4 of the context, and the token after them
  EXPECT_EQ(generate(none, {.prompt = {'x'}, .max_tokens = 0}).text, "");
}

TEST(Generator, ThrowsWhereNothingCanBeDrawn) {
  class Nothing : public Script {
   public:
    Nothing() : Script("") {}
    void run(const program::Step&, Said& said) override {
      std::ranges::fill(said.logits, std::numeric_limits<float>::quiet_NaN());
    }
  } nothing;
  EXPECT_THROW(generate(nothing, {.prompt = {'x'}}), Error);
}

TEST(Generator, CancelsWhenTheReaderSaysSo) {
  Script script("abcdefgh");
  const text::Tokenizer tokenizer = byte_tokenizer();
  Generator generator(script, tokenizer, 100, 4);
  int pieces = 0;
  Request request{.prompt = {'x'}};
  request.sampling.temperature = 0;
  EXPECT_EQ(generator.run(request, [&](std::string_view) { return ++pieces < 3; }).finish, Finish::Cancelled);
  EXPECT_EQ(pieces, 3);
}

TEST(Generator, RefusesPromptsThatDoNotFit) {
  Script script("a");
  EXPECT_THROW(generate(script, {}), Error);
  EXPECT_THROW(generate(script, {.prompt = std::vector<int32_t>(5, 'x')}, 5), Error);
  EXPECT_NO_THROW(generate(script, {.prompt = std::vector<int32_t>(4, 'x')}, 5));
}

}  // namespace
}  // namespace sluice::engine
