#include "cli/generation.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/hub_model.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "engine/kv_pool.h"

namespace sluice::cli {
namespace {

/// Sampling as the file recommends it (general.sampling.*), where the command line says nothing.
void take_recommended(const CLI::App& command, const gguf::File& file, engine::SamplingParams& sampling) {
  const auto take = [&](const char* flag, const char* key, auto& field) {
    if (command.count(flag) > 0) return;
    if (const auto value = file.number(std::string("general.sampling.") + key)) {
      if (std::isnan(*value)) fail("{}: general.sampling.{} is not a number", file.path(), key);
      // -1 is how some files say that they recommend nothing. Of the window it means all tokens.
      const bool none = *value == -1 && std::string_view(key) != "penalty_last_n";
      if (none && std::string_view(key) != "top_k") return;
      // It may still be anything; what is out of range is told by validate().
      const double meant = none ? 0 : std::clamp(*value, -1e9, 1e9);  // of top_k: off
      field = static_cast<std::remove_reference_t<decltype(field)>>(meant);
    }
  };
  take("--temp", "temp", sampling.temperature);
  take("--top-k", "top_k", sampling.top_k);
  take("--top-p", "top_p", sampling.top_p);
  take("--min-p", "min_p", sampling.min_p);
  take("--repeat-penalty", "penalty_repeat", sampling.repeat_penalty);
  take("--repeat-last-n", "penalty_last_n", sampling.penalty_window);
}

}  // namespace

void add_sampling_options(CLI::App& command, GenerationOptions& options) {
  engine::SamplingParams& s = options.sampling;
  command.add_option("-s,--seed", options.seed, "seed of the sampler; -1: a new one each time")
      ->capture_default_str();
  command.add_option("--temp", s.temperature, "temperature; 0: always the likeliest token")
      ->capture_default_str();
  command.add_option("--top-k", s.top_k, "keep the K likeliest tokens; 0: off")->capture_default_str();
  command.add_option("--top-p", s.top_p, "keep the likeliest tokens that make up P; 1: off")
      ->capture_default_str();
  command
      .add_option("--min-p", s.min_p, "keep tokens of at least P times the likeliest's probability; 0: off")
      ->capture_default_str();
  command.add_option("--repeat-penalty", s.repeat_penalty, "divides the scores of recent tokens; 1: off")
      ->capture_default_str();
  command.add_option("--repeat-last-n", s.penalty_window, "how many last tokens count as recent; -1: all")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", s.presence_penalty,
                  "subtracted once from tokens of the answer; 0: off")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", s.frequency_penalty,
                  "subtracted for each time in the answer; 0: off")
      ->capture_default_str();
}

engine::SamplingParams chosen_sampling(const CLI::App& command, const gguf::File& file,
                                       const GenerationOptions& options) {
  engine::SamplingParams sampling = options.sampling;
  take_recommended(command, file, sampling);
  sampling.seed = options.seed >= 0 ? static_cast<uint64_t>(options.seed) : std::random_device{}();
  sampling.validate();
  return sampling;
}

void add_generation_options(CLI::App& command, GenerationOptions& options) {
  add_model_option(command, options.model);
  command.add_option("-n,--predict", options.tokens, "tokens to generate; -1: until the end")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("-c,--ctx-size", options.context,
                  "context in tokens; 0: as much of the model's own as fits")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command.add_option("-t,--threads", options.threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--stop", options.stops, "text at which to stop; may be given again")
      ->allow_extra_args(false);
  command.add_option("--backend", options.backend, kBackendHelp)->capture_default_str();
  add_draft_options(command, options.drafts);
  command.add_flag("--force", options.force, "load even when memory is too small");
  add_invariant_option(command, options.batch_invariant);
  add_loading_option(command, options.no_repack);
  add_gpu_memory_option(command, options.gpu);
  add_rank_options(command, options.ranks);
  add_cache_option(command, options.cache);
  add_sampling_options(command, options);
}

PromptRows PromptRows::within(int64_t context) const {
  // A step takes half as many rows as are before it: two thirds of the context.
  const int64_t deepest = (context / 3 + program::kPageRows) / program::kPageRows * program::kPageRows;
  return {std::min(most, std::max(shallow, deepest)), shallow, aside};
}

PromptRows prefill_rows(const model::Spec& spec, const program::Backend& backend) {
  const program::Facts facts = backend.facts();
  const int64_t of_experts = facts.prompt_rows > 0 ? facts.prompt_rows : 1024;
  const int64_t shallow = spec.experts > 0 ? of_experts : 512;
  return {std::max(shallow, facts.deep_rows), shallow};
}

LoadedModel::LoadedModel(const CLI::App& command, const GenerationOptions& options)
    : model_(open_model(model_path_or_bundled(options.model), options.cache)),
      tokenizer_(model::load_tokenizer(model_.file)),
      sampling_(chosen_sampling(command, model_.file, options)) {
  if (options.context > model_.spec.context) {
    fail("-c {}: the model was made for a context of {}", options.context, model_.spec.context);
  }
  backend_ = make_backend(options.backend, options.threads, {!options.no_repack, model_.packed}, model_,
                          {options.gpu, options.context}, options.ranks);
  PromptRows rows = prefill_rows(model_.spec, *backend_);
  const int64_t drafts = draft_tokens(*backend_, options.drafts), outputs = 1 + drafts;
  prepare_drafts(model_, *backend_, options.drafts, options.cache, options.batch_invariant);
  program::CompileOptions compile{rows.most, outputs, 0, options.batch_invariant};
  const engine::LoadPlan plan = checked_plan(model_, *backend_, compile, options.context, options.force);
  rows = rows.within(plan.context);
  compile.max_rows = rows.most, compile.cache_pages = engine::KvPool::pages_for(plan.context);
  executables_ = compile_drafting(*backend_, model_, compile, loading_bar());
  generator_.emplace(*executables_.model, tokenizer_, plan.context, rows.most, rows.shallow, drafts,
                     executables_.predictor.get(), options.drafts.look_up());
}

void print_statistics(const engine::Result& result, uint64_t seed) {
  const auto rate = [](int64_t tokens, int64_t ns) {
    return ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(ns) : 0.0;
  };
  const std::string cached =
      result.cached_tokens > 0 ? fmt::format(" ({} from the cache)", result.cached_tokens) : "";
  const std::string drafted =
      result.draft_tokens > 0
          ? fmt::format(" ({} of {} drafted ones right)", result.accepted_tokens, result.draft_tokens)
          : "";
  note("[ prompt: {} tokens{}, {:.1f} tokens/s | generation: {} tokens{}, {:.1f} tokens/s | seed {} ]\n",
       result.prompt_tokens, cached, rate(result.prompt_tokens - result.cached_tokens, result.prompt_ns),
       result.generated_tokens, drafted, rate(result.generated_tokens - 1, result.decode_ns), seed);
}

}  // namespace sluice::cli
