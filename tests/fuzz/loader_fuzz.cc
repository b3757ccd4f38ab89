// Any bytes as a model: container, facts, tensors, vocabulary, Program, and where that is small enough two
// tokens on every backend. Either an Error or a model that runs; its numbers may be anything.
#include <cstddef>
#include <cstdint>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/check.h"
#include "base/error.h"
#include "engine/batch.h"
#include "engine/sampler.h"
#include "model/model.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

/// What a fuzzer can wait for.
constexpr double kMostFlops = 2e6;
constexpr int64_t kMostArenaBytes = 1 << 24;

void run(program::Backend& backend, const model::Model& model, std::span<const int32_t> tokens) {
  const auto executable = backend.compile(model.program, model.weights, {2, 1, 1});
  engine::Batch batch(2, 1, 1);
  const int32_t page[] = {0};
  batch.set_pages(0, page);
  for (int32_t i = 0; i < 2; ++i) batch.add(tokens[static_cast<size_t>(i)], i, 0, i == 1);
  std::vector<float> logits(static_cast<size_t>(model.spec.vocabulary));
  run_logits(*executable, batch.input(), logits);
  for (const float temperature : {0.0f, 1.0f}) {
    engine::SamplingParams params;
    params.temperature = temperature;
    engine::Sampler sampler(params, static_cast<int32_t>(logits.size()));
    const int32_t token = sampler.sample(logits);
    CHECK(token >= 0 && token < model.spec.vocabulary);
  }
}

void load(std::span<const std::byte> bytes) {
  gguf::File file = gguf::File::parse("fuzz", bytes);
  std::vector<int32_t> tokens;
  try {
    const text::Tokenizer tokenizer = model::load_tokenizer(file);
    tokens = tokenizer.encode("A tale <|user|> \n\xFF", true);
    for (const int32_t token : tokens) CHECK(token >= 0 && token < tokenizer.size());
    tokenizer.decode(tokens, true);
  } catch (const Error&) {
    // a model may be sound where its vocabulary is not: logits of given tokens need none
  }
  const model::Model model = model::Model::load(std::move(file));
  for (int32_t& token : tokens) CHECK(token < model.spec.vocabulary);
  tokens.resize(2, 0);
  if (program::total_cost(model.program, {}).flops > kMostFlops ||
      program::plan_memory(model.program, 2, 1).arena_bytes > kMostArenaBytes) {
    return;
  }
  run(*backend::make_ref_backend(), model, tokens);
  run(*backend::make_cpu_backend({.threads = 1}), model, tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    load(std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
    // what bad files are meant to end in
  }
  return 0;
}
