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

/// Two rows of the trunk's hidden states through the block of multi-token prediction.
void predict(program::Backend& backend, const model::Model& model, std::span<const int32_t> tokens) {
  const program::Source sources[] = {{model.program, model.weights},
                                     {model.prediction->program, model.prediction->weights}};
  const auto weights = backend.load(sources, {});
  const auto trunk = backend.compile(sources[0], weights, {2, 1, 1});
  program::CompileOptions options{2, 1, 1};
  options.beside = trunk.get();
  const auto block = backend.compile(sources[1], weights, options);
  engine::Batch batch(2, 1, 1);
  const int32_t page[] = {0};
  batch.set_pages(0, page);
  for (int32_t i = 0; i < 2; ++i) batch.add(tokens[static_cast<size_t>(i)], i, 0, i == 1);
  run_step(*trunk, batch.step());
  const program::Executable::RowCopy copies[] = {{0, 0}, {1, 1}};
  block->take_rows(*trunk, trunk->program().hidden_out(), copies);
  run_step(*block, batch.step());
}

bool is_small(const program::Program& program) {
  return program::total_cost(program, {}).flops <= kMostFlops &&
         program::plan_memory(program, 2, 1).arena_bytes <= kMostArenaBytes;
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
  model::Model model = model::Model::load(std::move(file));
  for (int32_t& token : tokens) CHECK(token < model.spec.vocabulary);
  tokens.resize(2, 0);
  if (!is_small(model.program)) return;
  const auto ref = backend::make_ref_backend(), cpu = backend::make_cpu_backend({.threads = 1});
  run(*ref, model, tokens);
  run(*cpu, model, tokens);
  if (model.add_prediction() || !is_small(model.prediction->program)) return;
  predict(*ref, model, tokens);
  predict(*cpu, model, tokens);
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
