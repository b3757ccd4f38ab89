// sluice perplexity: how well a model predicts a text, and how far its predictions lie from saved ones.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/saved_logits.h"
#include "cli/token_source.h"
#include "engine/kv_pool.h"
#include "engine/perplexity.h"
#include "engine/scorer.h"

namespace sluice::cli {
namespace {

struct PerplexityOptions {
  std::string model, file, tokens, save, against, backend = "cpu";
  int64_t context = 0, stride = 0, windows = 0;
  int threads = 0;
  bool force = false, json = false;
  quant::Type cache = quant::Type::F16;
  GpuShare gpu;
  RankOptions ranks;
};

/// Without -c: as much as a text's windows need, for most texts.
constexpr int64_t kDefaultContext = 2048;
/// Rows of logits that a step gives take at most this many floats (64 MiB).
constexpr int64_t kMostLogits = 1 << 24;
constexpr int64_t kMostRows = 512;

/// What is run: tokens, and how they are cut.
struct Text {
  std::vector<int32_t> tokens;
  Cut cut;
};

Text read_text(const PerplexityOptions& options, const model::Model& model, const SavedLogits* against) {
  if (against != nullptr) {
    if (against->vocabulary() != model.spec.vocabulary) {
      fail("{}: logits of {} tokens, the model has {}", options.against, against->vocabulary(),
           model.spec.vocabulary);
    }
    return {against->tokens(), against->cut()};
  }
  Text text;
  text.tokens = options.tokens.empty() ? tokens_of_text(model.file, read_file(options.file))
                                       : read_token_file(options.tokens, model.spec.vocabulary);
  if (text.tokens.size() < 2) {
    fail("{}: {} tokens: there is nothing to predict", options.tokens.empty() ? options.file : options.tokens,
         text.tokens.size());
  }
  text.cut.length = options.context > 0 ? options.context : std::min(kDefaultContext, model.spec.context);
  text.cut.stride = options.stride > 0 ? options.stride : text.cut.length;
  return text;
}

/// What a run of the windows gives.
struct Measured {
  size_t windows = 0;
  int64_t tokens = 0;  ///< that were run
  engine::Mean nats;   ///< of the tokens that were predicted
  std::optional<engine::Divergences> kl;
  int64_t ns = 0;

  double perplexity() const { return std::exp(nats.mean()); }
  double tokens_per_second() const { return static_cast<double>(tokens) * 1e9 / static_cast<double>(ns); }
};

/// "predicting  [####    ]  50 %  1024 of 2048 tokens, window 1 of 1, perplexity 9.8765".
std::string progress_text(const Measured& measured, size_t windows, int64_t predicted) {
  const int64_t done = measured.nats.count();
  std::string amount = fmt::format("{} of {} tokens, window {} of {}", done, predicted,
                                   std::min(measured.windows + 1, windows), windows);
  if (done > 0) amount += fmt::format(", perplexity {:.4f}", measured.perplexity());
  return bar_text("predicting", done, predicted, amount);
}

Measured measure(engine::Scorer& scorer, const Text& text, const std::vector<engine::Window>& windows,
                 int64_t predicted, const SavedLogits* against, LogitsWriter* save) {
  Measured measured;
  if (against != nullptr) measured.kl.emplace();
  int64_t row = 0;
  const int64_t start = now_ns();
  ProgressLine line;
  const auto show = [&] { line.show([&] { return progress_text(measured, windows.size(), predicted); }); };
  show();
  for (const engine::Window& window : windows) {
    const auto tokens =
        std::span(text.tokens)
            .subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.end - window.begin));
    // The last token's logits predict nothing that is known.
    scorer.run(tokens.first(tokens.size() - 1), window.first_scored - window.begin - 1,
               [&](int64_t position, std::span<const float> logits) {
                 const auto next = static_cast<size_t>(tokens[static_cast<size_t>(position) + 1]);
                 measured.nats.add(engine::log_sum_exp(logits) - static_cast<double>(logits[next]));
                 if (against != nullptr) measured.kl->add(against->row(row), logits);
                 if (save != nullptr) save->row(logits);
                 ++row;
                 show();
               });
    measured.tokens += static_cast<int64_t>(tokens.size()) - 1;
    ++measured.windows;
    measured.ns = std::max<int64_t>(1, now_ns() - start);
  }
  return measured;
}

void print_text_report(const Measured& m) {
  print(
      "perplexity {:.4f} +- {:.4f} ({:.5f} nats a token), {} tokens predicted in {} window{}, {:.1f} "
      "tokens/s\n",
      m.perplexity(), m.perplexity() * m.nats.standard_error(), m.nats.mean(), m.nats.count(), m.windows,
      m.windows == 1 ? "" : "s", m.tokens_per_second());
  if (!m.kl) return;
  print(
      "KL divergence {:.3e} +- {:.1e} nats, 99th percentile {:.3e}, largest {:.3e}, same likeliest token "
      "{:.3f} %\n",
      m.kl->mean().mean(), m.kl->mean().standard_error(), m.kl->quantile(0.99), m.kl->largest(),
      100 * m.kl->same_top());
}

void print_json_report(const Measured& m, const Text& text) {
  nlohmann::ordered_json json = {{"tokens", text.tokens.size()},
                                 {"context", text.cut.length},
                                 {"stride", text.cut.stride},
                                 {"windows", m.windows},
                                 {"predicted", m.nats.count()},
                                 {"nats", m.nats.mean()},
                                 {"nats_standard_error", m.nats.standard_error()},
                                 {"perplexity", m.perplexity()},
                                 {"perplexity_standard_error", m.perplexity() * m.nats.standard_error()},
                                 {"tokens_per_second", m.tokens_per_second()}};
  if (m.kl) {
    json["kl"] = {{"mean", m.kl->mean().mean()},
                  {"standard_error", m.kl->mean().standard_error()},
                  {"percentile_99", m.kl->quantile(0.99)},
                  {"largest", m.kl->largest()},
                  {"same_top", m.kl->same_top()}};
  }
  print("{}\n", json.dump(2));
}

void perplexity(const PerplexityOptions& options) {
  if (follows(options.ranks, {options.model, options.backend, options.threads, false, options.cache})) return;
  const OpenedModel model = open_model(model_path_or_bundled(options.model), options.cache);
  std::optional<SavedLogits> against;
  if (!options.against.empty()) against.emplace(options.against);
  Text text = read_text(options, model, against ? &*against : nullptr);
  const Cut cut = text.cut;
  if (cut.length > model.spec.context)
    fail("windows of {} tokens: the model was made for a context of {}", cut.length, model.spec.context);
  if (cut.stride > cut.length)
    fail("--stride {}: more than the windows of {} tokens", cut.stride, cut.length);
  auto windows = engine::windows_of(static_cast<int64_t>(text.tokens.size()), cut.length, cut.stride);
  if (options.windows > 0 && options.windows < static_cast<int64_t>(windows.size())) {
    windows.resize(static_cast<size_t>(options.windows));
    text.tokens.resize(static_cast<size_t>(windows.back().end));
  }
  int64_t predicted = 0;
  for (const engine::Window& window : windows) predicted += window.end - window.first_scored;

  const int64_t rows =
      std::clamp<int64_t>(kMostLogits / model.spec.vocabulary, 1, std::min(kMostRows, cut.length));
  const auto backend = make_backend(options.backend, options.threads, {true, model.packed}, model,
                                    {options.gpu, cut.length, rows}, options.ranks);
  checked_plan(model, *backend, {rows, rows, 0}, cut.length, options.force);
  const auto executable = backend->compile(
      model.program, model.weights, {rows, rows, engine::KvPool::pages_for(cut.length)}, loading_bar());
  engine::Scorer scorer(*executable, cut.length, rows);
  std::optional<LogitsWriter> save;
  if (!options.save.empty()) save.emplace(options.save, model.spec.vocabulary, cut, text.tokens, predicted);
  const Measured measured =
      measure(scorer, text, windows, predicted, against ? &*against : nullptr, save ? &*save : nullptr);
  if (save) save->complete();
  options.json ? print_json_report(measured, text) : print_text_report(measured);
}

}  // namespace

void add_perplexity(CLI::App& app) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  auto* source = command->add_option_group("source", "the text");
  source->add_option("-f,--file", options->file, "file with the text");
  source->add_option("--tokens", options->tokens, "JSON file: an object with an array \"tokens\"");
  source->add_option("--kl-against", options->against,
                     "file of --save-logits: its text and windows, and the divergence from its logits");
  source->require_option(1);
  command
      ->add_option("-c,--ctx-size", options->context, "tokens a window; 0: the model's context, at most 2048")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--stride", options->stride, "tokens from window to window; 0: a window's length")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--windows", options->windows, "only the first windows; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option(
      "--save-logits", options->save,
      "write the tokens and the logits that predict them (4 bytes a number of the vocabulary)");
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_gpu_memory_option(*command, options->gpu);
  add_rank_options(*command, options->ranks);
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_flag("--force", options->force, "load even when memory is too small");
  add_cache_option(*command, options->cache);
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer(
      "Each window is run as a sequence of its own; every token is predicted once, with what its window has\n"
      "before it. The standard error takes the tokens for independent. KL is that of the model's "
      "distribution\n"
      "from the saved one, in nats.\n"
      "A file of logits, little-endian: \"SLLOGITS\", uint32 version 1, uint32 vocabulary; int64 window "
      "length,\n"
      "stride, tokens n, rows r; int32 tokens [n]; float32 logits [r][vocabulary], of the rows that "
      "predict.");
  command->callback([options] {
    if (options->context == 1) throw UsageError("-c 1: a window needs two tokens");
    perplexity(*options);
  });
}

}  // namespace sluice::cli
