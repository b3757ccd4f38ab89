#include "cli/memory_view.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/generation.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

/// What each of a program's caches keeps, where there are several.
std::vector<std::string> cache_texts(const program::Program& program) {
  std::vector<std::string> texts;
  if (program.caches().size() < 2) return texts;
  for (const program::TensorId id : program.caches()) {
    const program::Tensor& cache = program[id];
    const bool paged = cache.kind == program::Kind::Cache;
    texts.push_back(fmt::format("{}: {} layers of {} {} {}", cache.name, cache.shape[0],
                                cache.columns() * (paged ? 1 : cache.shape[1]),
                                quant::type_info(cache.type).name, paged ? "a token" : "a sequence"));
  }
  return texts;
}

}  // namespace

std::string too_little_memory(const engine::LoadPlan& plan) {
  std::string text = fmt::format(
      "needs {} of memory, {} are available: weights {}, cache {} for a context of {} tokens, scratch {}, "
      "logits {}; ",
      size_text(plan.total_bytes()), size_text(plan.available_bytes), size_text(plan.needs.weights_bytes),
      size_text(plan.needs.cache_bytes), plan.context, size_text(plan.needs.scratch_bytes),
      size_text(plan.logits_bytes));
  text += plan.fitting_context > 0 ? fmt::format("-c {} fits", plan.fitting_context) : "no context fits";
  return text + "; --force loads it all the same";
}

const program::Program* block_of(const model::Model& model) {
  return model.prediction ? &model.prediction->program : nullptr;
}

engine::LoadPlan checked_plan(const model::Model& model, const program::Backend& backend,
                              const program::CompileOptions& options, int64_t wanted, bool force) {
  const engine::LoadPlan plan = engine::plan_load(backend, model.program, options, model.spec.context, wanted,
                                                  backend.available_bytes(), block_of(model));
  if (!plan.fits() && !force)
    throw TooLittleMemory(fmt::format("{}: {}", model.file.path(), too_little_memory(plan)));
  if (wanted == 0 && plan.context < model.spec.context) {
    note("[ context: {} of the model's {} tokens, as many as fit into {} of memory ]\n", plan.context,
         model.spec.context, size_text(plan.available_bytes));
  }
  return plan;
}

MemoryView memory_view(const model::Model& model, const program::Backend& backend, int64_t wanted) {
  if (wanted > model.spec.context) {
    fail("-c {}: the model was made for a context of {}", wanted, model.spec.context);
  }
  const int64_t outputs = 1 + draft_tokens(backend, GenerationOptions{}.drafts);
  const auto plan = [&](int64_t rows, int64_t context) {
    return engine::plan_load(backend, model.program, {rows, outputs, 0}, model.spec.context, context,
                             backend.available_bytes(), block_of(model));
  };
  // The context is chosen first, as when a model is loaded: a short one needs fewer rows.
  const PromptRows rows = prefill_rows(model.spec, backend);
  const int64_t context = plan(rows.most, wanted).context, most = rows.within(context).most;
  return {backend.name(),     model.spec.context,  most,
          own_memory_bytes(), plan(most, context), cache_texts(model.program)};
}

std::string memory_text(const MemoryView& view) {
  const engine::LoadPlan& plan = view.plan;
  const auto line = [](const char* name, int64_t bytes, const std::string& note) {
    return fmt::format("  {:<11}{:>16}{:>12}  {}\n", name, bytes, size_text(bytes), note);
  };
  std::string text = fmt::format("memory on backend {} for a context of {} of {} tokens, in bytes\n",
                                 view.backend, plan.context, view.model_context);
  text += line("weights", plan.needs.weights_bytes, "");
  text += line("cache", plan.needs.cache_bytes, "when the context is full");
  for (const std::string& cache : view.caches) text += fmt::format("    {}\n", cache);
  text += line("scratch", plan.needs.scratch_bytes, fmt::format("for {} rows a step", view.rows));
  text += line("logits", plan.logits_bytes, "");
  text += line("all", plan.total_bytes(), "");
  text += line("program", view.process_bytes, "this process with the vocabulary");
  if (plan.available_bytes == kUnknownMemory) return text + "  how much is available cannot be told\n";
  return text + line("available", plan.available_bytes,
                     plan.fitting_context > 0 ? fmt::format("fits a context of {}", plan.fitting_context)
                                              : "too little for any context");
}

nlohmann::ordered_json memory_json(const MemoryView& view) {
  const engine::LoadPlan& plan = view.plan;
  nlohmann::ordered_json json = {{"backend", view.backend},
                                 {"context", plan.context},
                                 {"model_context", view.model_context},
                                 {"weights_bytes", plan.needs.weights_bytes},
                                 {"cache_bytes", plan.needs.cache_bytes},
                                 {"scratch_bytes", plan.needs.scratch_bytes},
                                 {"logits_bytes", plan.logits_bytes},
                                 {"total_bytes", plan.total_bytes()},
                                 {"process_bytes", view.process_bytes},
                                 {"available_bytes", plan.available_bytes},
                                 {"fitting_context", plan.fitting_context},
                                 {"fits", plan.fits()}};
  if (!view.caches.empty()) json["caches"] = view.caches;
  return json;
}

}  // namespace sluice::cli
