// sluice logits: the logits of given tokens as raw floats, for comparing with other implementations.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string model, tokens, output, backend = "cpu";
  int64_t batch = 512;
  int threads = 0;
};

/// The `tokens` array of a JSON object, every id within the vocabulary.
std::vector<int32_t> read_tokens(const std::string& path, int64_t vocabulary) {
  const auto json = nlohmann::json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) fail("{}: not JSON", path);
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) {
    fail("{}: expected an object with an array \"tokens\"", path);
  }
  std::vector<int32_t> tokens;
  for (const auto& item : json["tokens"]) {
    const bool valid =
        item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() < vocabulary;
    if (!valid) fail("{}: tokens[{}] is no id from 0 to {}", path, tokens.size(), vocabulary - 1);
    tokens.push_back(item.get<int32_t>());
  }
  if (tokens.empty()) fail("{}: \"tokens\" is empty", path);
  return tokens;
}

void run(const Options& options) {
  const model::Model model = model::Model::load(model_path_or_bundled(options.model));
  const std::vector<int32_t> tokens = read_tokens(options.tokens, model.spec.vocabulary);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > model.spec.context) {
    fail("{}: {} tokens, more than the model's context of {}", options.tokens, count, model.spec.context);
  }
  const int64_t rows = std::min(options.batch, count);
  const auto pages = static_cast<int32_t>(engine::KvPool::pages_for(count));
  const auto backend = make_backend(options.backend, options.threads);
  const auto executable = backend->compile(model.program, model.weights,
                                           {.max_rows = rows, .max_outputs = rows, .cache_pages = pages});
  engine::KvPool pool(pages);
  std::vector<int32_t> table;
  pool.reserve(table, count);
  engine::Batch batch(rows, 1, pages);
  batch.set_pages(0, table);

  std::ofstream file(options.output, std::ios::binary | std::ios::trunc);
  if (!file) fail("{}: cannot be written", options.output);
  std::vector<float> logits(static_cast<size_t>(rows * model.spec.vocabulary));
  for (int64_t begin = 0; begin < count; begin += rows) {
    batch.clear();
    for (int64_t i = begin; i < std::min(count, begin + rows); ++i) {
      batch.add(tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, true);
    }
    program::StepOutput output{logits};
    executable->run(batch.input(), output);
    file.write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(sizeof(float)) * batch.rows() * model.spec.vocabulary);
  }
  file.close();
  if (!file) fail("{}: writing failed", options.output);
  fmt::print(stderr, "{}: [{}, {}] float32\n", options.output, count, model.spec.vocabulary);
}

}  // namespace

void add_logits(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits of given tokens as little-endian float32");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--tokens", options->tokens, "JSON file: an object with an array \"tokens\"")
      ->required();
  command->add_option("-o,--output", options->output, "file for float32 [tokens, vocabulary]")->required();
  command->add_option("--backend", options->backend, "cpu or ref")->capture_default_str();
  command->add_option("--batch", options->batch, "rows a step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace sluice::cli
