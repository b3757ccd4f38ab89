// The engine over several places: to it they are one device, and its promises hold.
#include <gtest/gtest.h>

#include <atomic>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "model/model.h"
#include "support/recorder.h"

namespace sluice::engine {
namespace {

using test::Recorder;

struct Served {
  model::Model model = model::Model::load(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf");
  text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  EngineOptions options;
  std::unique_ptr<program::Backend> backend;
  std::unique_ptr<program::Executable> executable;

  Served(const EngineOptions& given, const std::vector<double>& shares) : options(given) {
    const std::shared_ptr<program::Backend> cpu = backend::make_cpu_backend({.threads = 1});
    std::vector<backend::Place> places;
    for (const double share : shares) places.push_back({cpu, share});
    backend = backend::make_places_backend(std::move(places));
    executable = backend->compile(model.program, model.weights,
                                  {.max_rows = options.max_rows,
                                   .max_outputs = options.outputs(),
                                   .cache_pages = options.pages,
                                   .batch_invariant = true,
                                   .aside_rows = 16});
  }
};

struct Answer {
  std::string text;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

std::vector<Request> requests(const text::Tokenizer& tokenizer) {
  std::string tale = "Once upon a time there was a king who had three daughters";
  std::vector<Request> list;
  for (uint64_t i = 0; i < 6; ++i) {
    Request request{.prompt = tokenizer.encode(tale, true), .max_tokens = 50};
    request.sampling.seed = i;
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.9f;
    request.top_logprobs = 1;
    request.prediction = request.prompt;  // drafts, most of them wrong
    list.push_back(std::move(request));
    tale +=
        ", and the youngest went into the wood, where she met a fox who spoke to her, and she said to the "
        "fox that";
  }
  return list;
}

TEST(EngineOverPlaces, NeighboursPrefixesAndPreemptionChangeNothing) {
  const EngineOptions options{.context = 512, .max_sequences = 4, .max_rows = 32, .pages = 14};
  Served served(options, {3, 0, 1});
  EXPECT_EQ(served.executable->facts().aside_rows, 0) << "no step pauses";
  const auto all = requests(served.tokenizer);
  std::vector<Answer> alone;
  for (const Request& request : all) {
    Engine engine(*served.executable, served.tokenizer, options);
    const auto listener = std::make_shared<Recorder>();
    engine.submit(request, listener);
    listener->wait();
    alone.push_back({listener->text, listener->logprobs});
  }
  EXPECT_FALSE(alone[0].text.empty());
  Engine engine(*served.executable, served.tokenizer, options);
  int64_t cached = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Recorder>> listeners;
    for (const Request& request : all)
      engine.submit(request, listeners.emplace_back(std::make_shared<Recorder>()));
    for (size_t i = 0; i < all.size(); ++i) {
      cached += listeners[i]->wait().cached_tokens;
      EXPECT_EQ((Answer{listeners[i]->text, listeners[i]->logprobs}), alone[i]) << i << ", round " << round;
    }
  }
  EXPECT_GT(cached, 100);
}

TEST(EngineOverPlaces, AStepThatIsGivenUpLeavesNoTrace) {
  Served served({.context = 512, .max_sequences = 1, .max_rows = 64, .pages = 2}, {1, 1});
  Batch batch(64, 1, 2);
  const int32_t pages[] = {0, 1};
  batch.set_pages(0, pages);
  for (int32_t i = 0; i < 64; ++i) batch.add(1 + i * 7 % 200, i, 0, i == 63);
  program::Step step = batch.step();
  const auto logits = [&] {
    const program::StepResult result = run_step(*served.executable, step);
    EXPECT_FALSE(result.stopped);
    return std::vector<float>(result.outputs[0].logits.begin(), result.outputs[0].logits.end());
  };
  const auto expected = logits();
  std::atomic<bool> stop = true;
  step.stop = &stop;
  EXPECT_TRUE(run_step(*served.executable, step).stopped);
  stop = false;
  EXPECT_EQ(logits(), expected);
}

TEST(EngineOverPlaces, WeightsAreLoadedOnceForSeveralExecutables) {
  const model::Model model = model::Model::load(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf");
  const std::shared_ptr<program::Backend> cpu = backend::make_cpu_backend({.threads = 1});
  const auto one = backend::make_places_backend({{cpu, 1}}),
             two = backend::make_places_backend({{cpu, 1}, {cpu, 2}});
  const program::Source source{model.program, model.weights};
  const int64_t whole = cpu->load({&source, 1}, {})->bytes();
  EXPECT_EQ(one->load({&source, 1}, {})->bytes(), whole);
  const auto weights = two->load({&source, 1}, {});
  // Parts end with panels that are not full, and latent attention's first products are at both.
  EXPECT_GE(weights->bytes(), whole);
  EXPECT_LT(static_cast<double>(weights->bytes()), 1.1 * static_cast<double>(whole));
  const program::CompileOptions options{.max_rows = 4, .max_outputs = 1, .cache_pages = 2};
  EXPECT_NE(two->compile(source, weights, options), nullptr);
  EXPECT_NE(two->compile(source, weights, options), nullptr);
}

}  // namespace
}  // namespace sluice::engine
