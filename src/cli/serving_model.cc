#include "cli/serving_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/bench_cost.h"
#include "cli/chat_template.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/shared_limit.h"
#include "engine/kv_pool.h"
#include "engine/state_pool.h"

namespace sluice::cli {
namespace {

constexpr int64_t kContextsOfCache = 4;  ///< as many whole contexts, where memory has room for them
constexpr double kCacheShare = 0.8;      ///< of the memory that is available, beyond one context
/// Rows a step of prompts that are scored, and so of logits: as many as requests run at once by default, so
/// that nothing is larger for it, and few enough for kernels of few rows.
constexpr int64_t kScoredRows = 32;
/// The name for clients: the file's, or its folder's file name.
std::string model_name(const gguf::File& file, const std::string& alias) {
  if (!alias.empty()) return alias;
  if (const auto name = file.string("general.name"); name && !name->empty()) return gguf::printable(*name);
  return std::filesystem::path(file.path()).stem().string();
}

/// Memory for this much of the cache: what was asked for, or several contexts if they fit.
engine::LoadPlan plan_cache(const model::Model& model, const program::Backend& backend,
                            const program::CompileOptions& compile, int64_t context,
                            const ServingOptions& options) {
  const int64_t available = backend.available_bytes();
  const auto plan = [&](int64_t wanted, int64_t most, int64_t bytes) {
    return engine::plan_load(backend, model.program, compile, most, wanted, bytes, block_of(model));
  };
  if (options.cache_tokens > 0) {
    if (options.cache_tokens < context)
      fail("--cache-tokens {}: less than the context of {}", options.cache_tokens, context);
    const engine::LoadPlan wanted = plan(options.cache_tokens, options.cache_tokens, available);
    if (!wanted.fits() && !options.force)
      throw TooLittleMemory(fmt::format("{}: {}", model.file.path(), too_little_memory(wanted)));
    return wanted;
  }
  const bool known = available != kUnknownMemory;
  const auto careful = known ? static_cast<int64_t>(static_cast<double>(available) * kCacheShare) : available;
  const int64_t contexts = std::min<int64_t>(kContextsOfCache, options.parallel);
  engine::LoadPlan chosen = plan(0, context * contexts, careful);
  if (chosen.context < context) chosen = plan(context, context, available);
  chosen.available_bytes = available;
  return chosen;
}

}  // namespace

PromptRows serving_rows(const model::Spec& spec, const program::Backend& backend, int64_t wanted,
                        int64_t parallel) {
  const program::Facts facts = backend.facts();
  const int64_t any = facts.prompt_rows;  // of any prompts, deep ones or not
  PromptRows rows = any > 0 ? PromptRows{any, any} : prefill_rows(spec, backend);
  if (wanted > 0) rows = {wanted, any > 0 ? wanted : std::min(wanted, rows.shallow)};
  rows = {rows_with_room(backend, rows.most), rows_with_room(backend, rows.shallow)};
  return {std::max(parallel, rows.most), std::max(parallel, rows.shallow),
          facts.aside_rows > 0 ? std::max(parallel, facts.aside_rows) : 0};
}

double serving_step_seconds(int64_t wanted_rows) { return wanted_rows > 0 ? 0 : 5; }

double serving_itl_ms(const program::Backend& backend, double wanted) {
  return wanted > 0 ? wanted : backend.facts().itl_ms;
}

ServingModel::ServingModel(const CLI::App& command, const ServingOptions& options, program::Progress progress,
                           bool whole)
    : model_(open_model(model_path_or_bundled(options.model), options.cache)),
      tokenizer_(model::load_tokenizer(model_.file)) {
  const gguf::File& file = model_.file;
  const engine::SamplingParams sampling = chosen_sampling(command, file, options);
  if (options.context > model_.spec.context)
    fail("-c {}: the model was made for a context of {}", options.context, model_.spec.context);
  try {
    chat_.emplace(make_chat_template(file, tokenizer_, options.trust_user_tokens));
  } catch (const Error& error) {
    chat_problem_ = error.what();  // completions of plain text need none
  }
  events_ = make_publisher(options.events);
  if (!options.pages.disk.empty()) store::PageFolder::check(page_folder_of(options.pages.disk).path);
  const bool keeps_pages = options.pages.ram_bytes > 0 || !options.pages.disk.empty();
  const std::string identity = keeps_pages ? model_identity(file) : "";
  backend_ = make_backend(
      options.backend, options.threads, {!options.no_repack, model_.packed}, model_,
      {options.gpu, std::max(options.context, options.cache_tokens), options.parallel, options.rows},
      options.ranks);
  if (const auto peaks = measured_peaks(*backend_)) {  // while the memory to read is free
    const program::Program cut = backend_->bind({model_.program, model_.weights}, {}).program;
    note("[ {} ]\n", shared_text(cut, *peaks));
  }
  PromptRows rows = serving_rows(model_.spec, *backend_, options.rows, options.parallel);
  engine::EngineOptions engine;
  engine.max_sequences = options.parallel;
  engine.draft_tokens = draft_tokens(*backend_, options.drafts);
  engine.look_up = options.drafts.look_up();
  prepare_drafts(model_, *backend_, options.drafts, options.cache, options.batch_invariant);
  engine.scored_rows = std::min(rows.most, kScoredRows);
  program::CompileOptions compile{rows.most, engine.outputs(), 0};
  compile.batch_invariant = options.batch_invariant;
  compile.aside_rows = rows.aside;
  compile.warm = true;
  compile.state_slots = engine.state_slots = engine::StatePool::wanted_slots(options.parallel);
  const int64_t wanted = whole && options.context == 0 ? model_.spec.context : options.context;
  const int64_t context = checked_plan(model_, *backend_, compile, wanted, options.force).context;
  rows = rows.within(context);
  compile.max_rows = rows.most;
  compile.context = context;
  plan_ = plan_cache(model_, *backend_, compile, context, options);
  compile.cache_pages = engine::KvPool::pages_for(plan_.context);
  executables_ = compile_drafting(*backend_, model_, compile, progress ? std::move(progress) : loading_bar());

  engine.predictor = executables_.predictor.get();
  engine.context = context;
  engine.max_rows = rows.most;
  engine.shallow_rows = rows.shallow;
  engine.long_step_seconds = serving_step_seconds(options.rows);
  engine.pages = compile.cache_pages;
  engine.max_itl_ms = serving_itl_ms(*backend_, options.max_itl_ms);
  engine.max_waiting = options.max_waiting;
  store_ = make_page_store(options.pages, *executables_.model, identity, model_name(file, options.alias));
  engine_ =
      std::make_unique<engine::Engine>(*executables_.model, tokenizer_, engine, store_.get(), events_.get());

  service_ = std::make_unique<server::Service>(server::Service{*engine_, tokenizer_});
  service_->chat = chat_ ? &*chat_ : nullptr;
  service_->log = [](const std::string& line) { note("sluice: {}\n", line); };
  service_->constraints = std::make_shared<text::ConstraintVocabulary>(tokenizer_);
  service_->sampling = sampling;
  service_->thinking_budget = options.thinking_budget;
  service_->model_id = model_name(file, options.alias);
  service_->model_path = file.path();
  service_->chat_template = chat_template_source(file);
  service_->bos = token_text(file, tokenizer_, "bos");
  service_->eos = token_text(file, tokenizer_, "eos");
  service_->trained_context = model_.spec.context;
  service_->model_bytes = plan_.needs.weights_bytes;
  service_->backend = backend_->name();
  service_->architecture = gguf::printable(model_.spec.architecture, 32);
  std::map<std::string, int64_t> bytes;  // by number format
  for (const gguf::Tensor& tensor : file.tensors()) {
    service_->parameters += tensor.count();
    bytes[quant::type_info(tensor.type).name] += static_cast<int64_t>(tensor.bytes.size());
  }
  service_->quantization =
      std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; })->first;
}

std::string ServingModel::description() const {
  const auto size = [](int64_t bytes) { return short_count(static_cast<double>(bytes), "B"); };
  const engine::EngineOptions& engine = engine_->options();
  std::string text = fmt::format("  model    {} ({}), backend {}\n", service_->model_id, service_->model_path,
                                 service_->backend);
  text +=
      fmt::format("  context  {} of {} tokens, {} requests at once, {} tokens in the cache\n", engine.context,
                  service_->trained_context, engine.max_sequences, engine.pages * program::kPageRows);
  text += fmt::format("  memory   {}: weights {}, cache {}, scratch {}, logits {}", size(plan_.total_bytes()),
                      size(plan_.needs.weights_bytes), size(plan_.needs.cache_bytes),
                      size(plan_.needs.scratch_bytes), size(plan_.logits_bytes));
  if (plan_.available_bytes != kUnknownMemory)
    text += fmt::format("; {} were available", size(plan_.available_bytes));
  text += "\n";
  if (store_ != nullptr) {
    const store::StoreStats stats = store_->stats();
    text += fmt::format("  prompts  {} of memory", size(stats.ram_limit_bytes));
    if (store_->has_disk())
      text += fmt::format("; {} of {} on disk, {} pages of this model", size(stats.disk_all_bytes),
                          size(stats.disk_limit_bytes), stats.disk_pages);
    text += "\n";
    if (!stats.problem.empty()) text += fmt::format("  prompts  cannot be kept: {}\n", stats.problem);
  }
  if (events_ != nullptr) {
    text += fmt::format("  events   of the cache, with its tokens, at {}", events_->endpoint());
    if (!events_->replay_endpoint().empty()) text += fmt::format("; again at {}", events_->replay_endpoint());
    text += "\n";
  }
  if (!chat_problem_.empty()) text += fmt::format("  chat     not possible: {}\n", chat_problem_);
  return text;
}

}  // namespace sluice::cli
