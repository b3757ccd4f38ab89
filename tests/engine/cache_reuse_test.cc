// A request that begins like the last one: the rows that the cache holds are not computed again, and the text
// is the same as without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "engine/batcher.h"
#include "engine/generator.h"
#include "model/model.h"
#include "support/recorder.h"

namespace sluice::engine {
namespace {

constexpr int64_t kContext = 256, kMaxRows = 32;

/// A model and its executable; generators are made over it as needed.
struct Bundled {
  model::Model model = model::Model::load(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf");
  text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  std::unique_ptr<program::Backend> backend;
  std::unique_ptr<program::Executable> executable;

  explicit Bundled(std::unique_ptr<program::Backend> made) : backend(std::move(made)) {
    executable = backend->compile(
        model.program, model.weights,
        {.max_rows = kMaxRows,
         .max_outputs = 1,
         .cache_pages = KvPool::pages_for(kContext),
         .batch_invariant = true});  // else a prompt that is read whole may take the tiles' other sums
  }
  Generator generator() { return {*executable, tokenizer, kContext, kMaxRows}; }
  Request request(const std::string& prompt, int64_t tokens) const {
    Request out{.prompt = tokenizer.encode(prompt, true), .max_tokens = tokens};
    out.sampling.temperature = 0;
    return out;
  }
};

struct Outcome {
  std::string text;
  Result result;
};

Outcome run(Generator& generator, const Request& request, const std::atomic<bool>* cancel = nullptr) {
  Outcome out;
  const auto on_text = [&](std::string_view text) {
    out.text += text;
    return true;
  };
  out.result = generator.run(request, on_text, cancel);
  return out;
}

/// Turns of a conversation, some of which go on where the last ended and some of which do not.
void compare(Bundled& bundled) {
  Generator kept = bundled.generator();
  const std::string opening = "Once upon a time there was a king who had three daughters, and the youngest";
  for (const std::string& prompt : {opening, opening, opening + " of them", opening.substr(0, 40),
                                    std::string("The fox"), std::string("The fox and the crow")}) {
    const Request request = bundled.request(prompt, 24);
    const Outcome with = run(kept, request);
    Generator fresh = bundled.generator();
    const Outcome without = run(fresh, request);
    EXPECT_EQ(with.text, without.text) << prompt;
    EXPECT_EQ(without.result.cached_tokens, 0);
    EXPECT_EQ(with.result.generated_tokens, without.result.generated_tokens);
  }
}

TEST(CacheReuse, GivesTheSameTextOnTheReferenceBackend) {
  Bundled bundled(backend::make_ref_backend());
  compare(bundled);
}

TEST(CacheReuse, GivesTheSameTextOnTheCpuBackend) {
  Bundled bundled(backend::make_cpu_backend({.threads = 2}));
  compare(bundled);
}

TEST(CacheReuse, CountsWhatTheLastRequestLeft) {
  Bundled bundled(backend::make_cpu_backend({.threads = 1}));
  Generator generator = bundled.generator();
  Request request = bundled.request("Once upon a time there was", 8);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  EXPECT_EQ(run(generator, request).result.cached_tokens, 0);
  // All but the last token, whose row gives the logits.
  EXPECT_EQ(run(generator, request).result.cached_tokens, prompt - 1);

  // The answer's tokens count too, but for the last, which was drawn and never fed.
  Generator fresh = bundled.generator();
  const std::string text = run(fresh, request).text;
  Request longer = bundled.request("Once upon a time there was" + text + " and then", 2);
  EXPECT_GE(run(fresh, longer).result.cached_tokens, prompt + 6);

  // The page that holds the end of a sequence is taken over where half of its rows or more serve.
  request = bundled.request("Once upon a time there was" + text + " and then", 2);
  const auto all = static_cast<int64_t>(request.prompt.size());
  EXPECT_GE(run(fresh, request).result.cached_tokens, prompt + 6);
  request.prompt[static_cast<size_t>(all - 3)] = request.prompt[2];
  EXPECT_EQ(run(fresh, request).result.cached_tokens, all - 3);
  request.prompt[2] = request.prompt[3];
  EXPECT_EQ(run(fresh, request).result.cached_tokens, 0);
  request.prompt.resize(1);
  EXPECT_EQ(run(generator, request).result.cached_tokens, 0) << "one token is always computed";
}

TEST(CacheReuse, ACancelledRequestKeepsWhatItComputed) {
  Bundled bundled(backend::make_cpu_backend({.threads = 1}));
  std::string words = "The fox";
  for (int i = 0; i < 60; ++i) words += " and the crow";
  const Request request = bundled.request(words, 8);
  ASSERT_GT(request.prompt.size(), 3 * static_cast<size_t>(kMaxRows));
  Batcher batcher(*bundled.executable, bundled.tokenizer,
                  {.context = kContext,
                   .max_sequences = 1,
                   .max_rows = kMaxRows,
                   .pages = KvPool::pages_for(kContext),
                   .max_waiting = 1});
  const auto cancelled = std::make_shared<test::Recorder>();
  batcher.add(1, request, cancelled, 1);
  std::atomic<bool> stop{false};
  batcher.step(&stop);
  stop = true;
  batcher.step(&stop);  // is given up
  batcher.cancel(1);
  EXPECT_EQ(cancelled->wait().finish, Finish::Cancelled);
  EXPECT_EQ(cancelled->text, "");
  EXPECT_EQ(cancelled->result.generated_tokens, 0);
  const auto resumed = std::make_shared<test::Recorder>();
  batcher.add(2, request, resumed, 1);
  while (resumed->ends == 0) batcher.step();
  EXPECT_EQ(resumed->result.cached_tokens, kMaxRows) << "one whole step was done";
  Generator fresh = bundled.generator();
  EXPECT_EQ(resumed->text, run(fresh, request).text);
}

TEST(CacheReuse, ACancelIsHeardBeforeTheFirstStepEnds) {
  Bundled bundled(backend::make_cpu_backend({.threads = 1}));
  Generator generator = bundled.generator();
  const Request request = bundled.request("Once upon a time there was a king", 8);
  const std::atomic<bool> cancel{true};
  const Outcome stopped = run(generator, request, &cancel);
  EXPECT_EQ(stopped.result.finish, Finish::Cancelled);
  EXPECT_EQ(stopped.result.generated_tokens, 0);
  EXPECT_EQ(run(generator, request).result.cached_tokens, 0);
}

TEST(CacheReuse, CancelEndsTheAnswerAfterTheToken) {
  Bundled bundled(backend::make_cpu_backend({.threads = 1}));
  Generator generator = bundled.generator();
  Request request = bundled.request("Once upon a time", 50);
  std::atomic<bool> cancel{false};
  int pieces = 0;
  const auto on_text = [&](std::string_view) {
    if (++pieces == 3) cancel = true;
    return true;
  };
  const Result result = generator.run(request, on_text, &cancel);
  EXPECT_EQ(result.finish, Finish::Cancelled);
  EXPECT_EQ(result.generated_tokens, 3);
  cancel = false;
  EXPECT_EQ(run(generator, request).result.generated_tokens, 50);
}

}  // namespace
}  // namespace sluice::engine
