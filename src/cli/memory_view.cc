#include "cli/memory_view.h"

#include <fmt/format.h>

#include <cstdio>
#include <set>
#include <utility>

#include "backend/places/places_backend.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "program/op_info.h"
#include "program/places.h"

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

std::vector<RankMemory> memory_of_ranks(const model::Model& model,
                                        const std::shared_ptr<program::Backend>& device, int ranks,
                                        int threads, const Fit& fit) {
  const bool is_gpu = device->name() == "cuda";
  if (!is_gpu && fit.share.bytes > 0) throw UsageError("--gpu-memory: the backend is " + device->name());
  const std::shared_ptr<program::Backend> cpu = is_gpu ? make_cpu_beside_gpu(threads) : nullptr;
  const program::Program cut = program::deal_layers(model.program, static_cast<size_t>(ranks));
  std::vector<RankMemory> list;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const program::Program side = program::program_at(cut, rank);
    RankMemory& memory = list.emplace_back();
    std::set<int32_t> layers;
    for (const program::Op& op : side.ops()) {
      if (op.layer >= 0 && !program::info(op).across_places) layers.insert(op.layer);
    }
    memory.layers = static_cast<int32_t>(layers.size());
    if (!layers.empty()) memory.first_layer = *layers.begin();
    program::CompileOptions options = fitted_options(*device, model.spec.context, fit);
    std::shared_ptr<program::Backend> own = device;
    if (is_gpu) {
      try {
        memory.fitted = fit_side_to(*device, side, model.spec.context, fit, cpu->available_bytes() / ranks);
      } catch (const Error& error) {
        fail("rank {}: {}", rank, error.what());
      }
      own = backend::make_offload_side_backend(device, cpu, memory.fitted.offload());
      options.max_rows = memory.fitted.rows;
    }
    memory.needs = own->memory_needs(side, options);
  }
  return list;
}

std::string rank_memory_text(const std::vector<RankMemory>& ranks, const program::Backend& device) {
  std::string text = fmt::format("memory of {} ranks, if each has a device like this one: {}\n", ranks.size(),
                                 device.device());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankMemory& one = ranks[i];
    text += fmt::format("  rank {}: {} layers", i, one.layers);
    if (one.layers > 0) text += fmt::format(" from {} on", one.first_layer);
    const program::MemoryNeeds& needs = one.needs;
    text += fmt::format("; weights {}, cache {}, scratch {}, all {}\n", size_text(needs.weights_bytes),
                        size_text(needs.cache_bytes), size_text(needs.scratch_bytes),
                        size_text(needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes));
    if (one.fitted.all_mixtures > 0) text += fmt::format("          {}\n", one.fitted.text());
  }
  return text;
}

nlohmann::ordered_json rank_memory_json(const std::vector<RankMemory>& ranks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RankMemory& one : ranks) {
    list.push_back({{"first_layer", one.first_layer},
                    {"layers", one.layers},
                    {"weights_bytes", one.needs.weights_bytes},
                    {"cache_bytes", one.needs.cache_bytes},
                    {"scratch_bytes", one.needs.scratch_bytes},
                    {"gpu_bytes", one.fitted.bytes},
                    {"layers_with_experts", one.fitted.all_mixtures},
                    {"layers_computed_by_cpu", one.fitted.mixtures},
                    {"cpu_bytes", one.fitted.moved_bytes}});
  }
  return {{"ranks", std::move(list)}};
}

}  // namespace sluice::cli
