// sluice logits: the logits of given tokens as raw floats, for comparing with other implementations.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/token_source.h"
#include "engine/kv_pool.h"
#include "engine/scorer.h"
#include "gguf/writer.h"

namespace sluice::cli {
namespace {

struct LogitsOptions {
  std::string model, tokens, output, backend = "cpu";
  int64_t batch = 512;
  int threads = 0;
  bool force = false;
  quant::Type cache = quant::Type::F16;
  GpuShare gpu;
  RankOptions ranks;
};

void run(const LogitsOptions& options) {
  if (follows(options.ranks, {options.model, options.backend, options.threads, false, options.cache})) return;
  const OpenedModel model = open_model(model_path_or_bundled(options.model), options.cache);
  const std::vector<int32_t> tokens = read_token_file(options.tokens, model.spec.vocabulary);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > model.spec.context) {
    fail("{}: {} tokens, more than the model's context of {}", options.tokens, count, model.spec.context);
  }
  const int64_t rows = std::min(options.batch, count);
  const auto backend = make_backend(options.backend, options.threads, {true, model.packed}, model,
                                    {options.gpu, count, rows}, options.ranks);
  checked_plan(model, *backend, {rows, rows, 0}, count, options.force);
  const auto executable =
      backend->compile(model.program, model.weights, {rows, rows, engine::KvPool::pages_for(count)});
  engine::Scorer scorer(*executable, count, rows);
  gguf::OutputFile file(options.output);
  scorer.run(tokens, 0, [&](int64_t, std::span<const float> logits) { file.write(std::as_bytes(logits)); });
  file.complete();
  note("{}: [{}, {}] float32\n", terminal_safe(options.output), count, model.spec.vocabulary);
}

}  // namespace

void add_logits(CLI::App& app) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits of given tokens as little-endian float32");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--tokens", options->tokens, "JSON file: an object with an array \"tokens\"")
      ->required();
  command->add_option("-o,--output", options->output, "file for float32 [tokens, vocabulary]")->required();
  add_gpu_memory_option(*command, options->gpu);
  add_rank_options(*command, options->ranks);
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_option("--batch", options->batch, "rows a step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--force", options->force, "load even when memory is too small");
  add_cache_option(*command, options->cache);
  command->callback([options] { run(*options); });
}

}  // namespace sluice::cli
