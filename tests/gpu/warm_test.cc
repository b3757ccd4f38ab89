// What serving needs is there before the first request: no graph is captured in a step.
#include <gtest/gtest.h>

#include <chrono>

#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "support/cuda.h"
#include "support/golden.h"
#include "support/recorder.h"

namespace sluice::test {
namespace {

using namespace program;

TEST(CudaWarm, NoStepOfServingCapturesAGraph) {
  CUDA_OR_SKIP(cuda);
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  engine::EngineOptions options;
  options.context = 512, options.max_sequences = 8, options.max_rows = 256, options.draft_tokens = 0;
  options.pages = engine::KvPool::pages_for(8 * options.context);
  const CompileOptions compile{.max_rows = options.max_rows,
                               .max_outputs = options.outputs(),
                               .cache_pages = options.pages,
                               .context = options.context,
                               .warm = true};
  const Source source{model.program, model.weights};
  const auto weights = cuda.load({&source, 1}, {});
  CompileOptions cold = compile;
  cold.warm = false;
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before_cold = cuda.available_bytes();
  const auto lazy = cuda.compile(source, weights, cold);
  const auto middle = std::chrono::steady_clock::now();
  const int64_t after_cold = cuda.available_bytes();
  const auto executable = cuda.compile(source, weights, compile);
  const auto end = std::chrono::steady_clock::now();
  const auto ms = [](auto span) {
    return std::to_string(std::chrono::duration<double, std::milli>(span).count());
  };
  RecordProperty("cold_ms", ms(middle - begin));
  RecordProperty("warm_ms", ms(end - middle));
  RecordProperty("cold_bytes", std::to_string(before_cold - after_cold));
  RecordProperty("warm_bytes", std::to_string(after_cold - cuda.available_bytes()));
  const int64_t taken = executable->memory_bytes();
  EXPECT_GT(taken, lazy->memory_bytes());

  // Answers alone and together, prompts of many lengths, answers whose whole logits are wanted.
  engine::Engine engine(*executable, tokenizer, options);
  std::vector<std::shared_ptr<Recorder>> answers;
  for (int i = 0; i < 40; ++i) {
    engine::Request request;
    for (int n = 0; n < 1 + i * 11; ++n) request.prompt.push_back(300 + (i + n) % 50);
    request.max_tokens = 3 + i % 7;
    request.ignore_end = true;
    if (i % 5 == 0) request.sampling.logit_bias = {{7, 2.0f}};
    request.use_cache = i % 2 == 0;
    answers.push_back(std::make_shared<Recorder>());
    engine.submit(std::move(request), answers.back());
    if (i < 3) answers.back()->wait();
  }
  for (const auto& answer : answers) EXPECT_EQ(answer->wait().finish, engine::Finish::Length);
  engine.stop();
  EXPECT_EQ(executable->memory_bytes(), taken) << "a graph more was captured";
}

}  // namespace
}  // namespace sluice::test
