// sluice draftbench: how much sooner a text is there with drafts, when a model writes a file that resembles
// its prompt. The model's own choice is overruled, token by token, so that what is written is the file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/generator.h"
#include "engine/kv_pool.h"
#include "text/constraint.h"

namespace sluice::cli {
namespace {

struct DraftBenchOptions : GenerationOptions {
  std::string before, after, vocabulary;
  int repetitions = 1;
  double accept = -1;  ///< of drafts, so many are taken to be right; -1: those that are
  bool every_step = false, json = false;
};

/// Lets a model write nothing but these tokens.
class Replay : public text::TokenConstraint {
 public:
  explicit Replay(std::span<const int32_t> tokens) : tokens_(tokens) {}
  bool allowed(std::span<uint32_t> bits) override {
    std::ranges::fill(bits, 0);
    if (!may_end()) bits[static_cast<size_t>(tokens_[at_]) / 32] = 1u << (tokens_[at_] % 32);
    return true;
  }
  bool accept(int32_t token) override {
    if (may_end() || token != tokens_[at_]) return false;
    ++at_;
    return true;
  }
  bool may_end() const override { return at_ == tokens_.size(); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Replay>(*this); }

 private:
  std::span<const int32_t> tokens_;
  size_t at_ = 0;
};

/// Of a file's text; ids from 0 to `most` are the model's.
std::vector<int32_t> tokens_of(const text::Tokenizer& tokenizer, const std::string& path, int64_t most) {
  std::vector<int32_t> tokens = tokenizer.encode(read_file(path), false);
  if (tokens.empty()) fail("{}: no text", path);
  for (const int32_t token : tokens)
    if (token > most) fail("{}: token {}, the model knows 0 to {}", path, token, most);
  return tokens;
}

/// A share `right` of drafts is taken for what comes.
std::function<bool()> simulated(double right) {
  return [right, random = std::mt19937(1)]() mutable {
    return std::uniform_real_distribution<double>()(random) < right;
  };
}

void draftbench(const DraftBenchOptions& options) {
  OpenedModel model = open_model(model_path_or_bundled(options.model), options.cache);
  const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  const text::Tokenizer reader = options.vocabulary.empty()
                                     ? model::load_tokenizer(model.file)
                                     : model::load_tokenizer(gguf::File::open(options.vocabulary));
  const int64_t most = model.spec.vocabulary - 1;
  engine::Request request{.prompt = tokens_of(reader, options.before, most)};
  std::vector<int32_t> after = tokens_of(reader, options.after, most);
  if (options.tokens > 0) after.resize(std::min(after.size(), static_cast<size_t>(options.tokens)));
  request.max_tokens = std::ssize(after);
  request.ignore_end = true;
  request.sampling.temperature = 0;
  const int64_t context = std::ssize(request.prompt) + std::ssize(after);
  if (context > model.spec.context)
    fail("both texts are {} tokens, the model was made for a context of {}", context, model.spec.context);

  const auto backend = make_backend(options.backend, options.threads, {!options.no_repack, model.packed});
  const int64_t drafts = draft_tokens(*backend, options.drafts);
  if (drafts == 0)
    fail("there are no drafts with --backend {}, --draft {} and --draft-max {}", backend->name(),
         options.drafts.by, options.drafts.most);
  const bool simulates = options.accept >= 0;
  if (!simulates || options.drafts.by == "mtp")
    prepare_drafts(model, *backend, options.drafts, options.cache, options.batch_invariant);
  const PromptRows rows = prefill_rows(model.spec, *backend).within(context);
  program::CompileOptions compile{rows.most, 1 + drafts, 0, options.batch_invariant};
  compile.warm = true;
  checked_plan(model, *backend, compile, context, options.force);
  compile.cache_pages = engine::KvPool::pages_for(context);
  const DraftingModel executables = compile_drafting(*backend, model, compile, loading_bar());
  engine::Generator generator(*executables.model, tokenizer, context, rows.most, rows.shallow, drafts,
                              executables.predictor.get(), !simulates && options.drafts.look_up(),
                              options.every_step);

  if (!options.json) {
    print("{} on {}: {} tokens, then {} that are written\n\n", model.file.path(), backend->name(),
          request.prompt.size(), after.size());
    if (simulates)
      print("Simulated: the model writes what it likes, and {:g} of {} taken to be right.\n\n",
            options.accept,
            executables.predictor ? "what its block drafts is" : "drafts that cost nothing are");
    print("| drafts | tokens/s | drafted | right | tokens a step |\n");
    print("|-------:|---------:|--------:|------:|--------------:|\n");
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (int i = 0; i < options.repetitions; ++i) {
    for (const bool with : {false, true}) {
      request.use_drafts = with;
      if (simulates) {
        request.accepts = simulated(options.accept);
      } else {
        request.constraint = std::make_shared<Replay>(after);
      }
      const engine::Result result = generator.run(
          request, [](std::string_view) { return true; }, nullptr, prompt_bar());
      const auto decoded = static_cast<double>(result.generated_tokens - 1);
      const double rate = decoded * 1e9 / static_cast<double>(std::max<int64_t>(result.decode_ns, 1));
      const double steps = decoded - static_cast<double>(result.accepted_tokens);
      if (options.json) {
        list.push_back({{"draft_max", with ? drafts : 0},
                        {"prompt_tokens", result.prompt_tokens},
                        {"tokens", result.generated_tokens},
                        {"tokens_per_second", rate},
                        {"draft_tokens", result.draft_tokens},
                        {"accepted_tokens", result.accepted_tokens}});
        if (simulates) list.back()["simulated_acceptance"] = options.accept;
      } else {
        print_text(fmt::format("| {:>6} | {:>8.2f} | {:>7} | {:>5} | {:>13.2f} |\n", with ? drafts : 0, rate,
                               result.draft_tokens, result.accepted_tokens, decoded / std::max(steps, 1.0)));
      }
    }
  }
  if (options.json) print_text(list.dump(2) + "\n");
}

}  // namespace

void add_draftbench(CLI::App& app) {
  auto options = std::make_shared<DraftBenchOptions>();
  CLI::App* command = app.add_subcommand(
      "draftbench", "Measure how much sooner an edited file is written with drafts than without");
  command->add_option("BEFORE", options->before, "file that the prompt consists of")->required();
  command->add_option("AFTER", options->after, "file that is written behind it")->required();
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--vocab", options->vocabulary,
                      "GGUF file whose vocabulary the files are read with; without it the model's own");
  command->add_option("-n,--n-gen", options->tokens, "tokens to write at most; -1: all of the file's")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command->add_option("-r,--repetitions", options->repetitions, "turns without drafts and with them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option(
          "--accept", options->accept,
          "simulate: the model writes what it likes, and takes such a share of drafts to be right (0 "
          "to 1); with --draft mtp its block makes them, otherwise they cost nothing")
      ->check(number_range(0.0, 1.0));
  command->add_flag("--every-step", options->every_step,
                    "as many drafts as there can be in every step, whether they pay or not");
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  add_draft_options(*command, options->drafts);
  add_invariant_option(*command, options->batch_invariant);
  command->add_flag("--force", options->force, "load even when memory is too small");
  command->add_flag("--json", options->json, "print JSON");
  add_loading_option(*command, options->no_repack);
  add_cache_option(*command, options->cache);
  command->footer(
      "What a model would write itself does not matter, only how long it takes to write this: so a file of\n"
      "`sluice synth` does, with a real vocabulary (its own tokens are shorter). Only decoding is timed.");
  command->callback([options] { draftbench(*options); });
}

}  // namespace sluice::cli
