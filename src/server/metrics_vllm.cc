// What is counted under vLLM's names: those that the Gateway API inference extension, llm-d's router and
// vLLM's dashboards look for. Where it counts something that is not here (LoRA, swapping), there is no line.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "server/metrics.h"

namespace sluice::server {
namespace {

using engine::EngineStats;
using engine::Finish;

/// A model, and the labels of its samples.
struct Labelled {
  std::string labels;
  EngineStats stats;
  const RequestTimes* times;
};

/// In quotes, as Prometheus has it.
std::string label_value(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

void head(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP vllm:{0} {1}\n# TYPE vllm:{0} {2}\n", name, help, type);
}

/// vLLM's reasons, by which it counts what ended, and what they are here.
constexpr std::array<std::pair<Finish, const char*>, engine::kFinishes> kReasons = {{
    {Finish::EndToken, "stop"},
    {Finish::StopString, "stop"},
    {Finish::Length, "length"},
    {Finish::ContextFull, "length"},
    {Finish::Cancelled, "abort"},
    {Finish::Shutdown, "abort"},
    {Finish::Error, "error"},
    {Finish::OutOfMemory, "error"},
}};

void finished_lines(std::string& out, const Labelled& model) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    int64_t count = 0;
    for (const auto& [finish, name] : kReasons)
      if (std::string_view(name) == reason) count += model.stats.finished_total[static_cast<size_t>(finish)];
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", model.labels, reason,
                       count);
  }
}

struct Value {
  const char *name, *type, *help;
  double (*of)(const EngineStats&);
};

constexpr Value kValues[] = {
    {"num_requests_running", "gauge", "requests in the batch",
     [](const EngineStats& s) { return static_cast<double>(s.running); }},
    {"num_requests_waiting", "gauge", "requests in the queue",
     [](const EngineStats& s) { return static_cast<double>(s.waiting); }},
    {"kv_cache_usage_perc", "gauge", "share of the cache's blocks that running requests use, 0 to 1",
     [](const EngineStats& s) {
       return s.pages > 0 ? static_cast<double>(s.used_pages) / static_cast<double>(s.pages) : 0;
     }},
    {"num_preemptions_total", "counter", "requests that had to give their blocks to others",
     [](const EngineStats& s) { return static_cast<double>(s.preemptions_total); }},
    {"prefix_cache_queries_total", "counter", "tokens of prompts that were looked for in the cache",
     [](const EngineStats& s) { return static_cast<double>(s.prompt_tokens_total); }},
    {"prefix_cache_hits_total", "counter", "of those, tokens that were there",
     [](const EngineStats& s) { return static_cast<double>(s.cached_tokens_total); }},
    {"prompt_tokens_total", "counter", "tokens of prompts",
     [](const EngineStats& s) { return static_cast<double>(s.prompt_tokens_total); }},
    {"generation_tokens_total", "counter", "tokens generated",
     [](const EngineStats& s) { return static_cast<double>(s.generated_tokens_total); }},
    {"spec_decode_num_draft_tokens_total", "counter", "tokens computed ahead of being drawn",
     [](const EngineStats& s) { return static_cast<double>(s.draft_tokens_total); }},
    {"spec_decode_num_accepted_tokens_total", "counter", "of those, tokens that were right",
     [](const EngineStats& s) { return static_cast<double>(s.accepted_tokens_total); }},
};

struct Times {
  const char *name, *help;
  Histogram RequestTimes::*of;
};

constexpr Times kTimes[] = {
    {"time_to_first_token_seconds", "from a request's arrival to its first token",
     &RequestTimes::time_to_first_token},
    {"inter_token_latency_seconds", "between two tokens of an answer", &RequestTimes::inter_token},
    // The name that it had before, which dashboards still ask for.
    {"time_per_output_token_seconds", "between two tokens of an answer", &RequestTimes::inter_token},
    {"request_queue_time_seconds", "from a request's arrival until its prompt is read",
     &RequestTimes::queue_time},
    {"e2e_request_latency_seconds", "from a request's arrival to the end of its answer",
     &RequestTimes::request_duration},
};

}  // namespace

void Metrics::vllm_names(std::string& out, const View& view) const {
  std::vector<Labelled> models;
  for (const auto& service : view.models) {
    const std::lock_guard lock(mutex_);
    const auto found = times_.find(service->model_id);
    models.push_back({fmt::format("engine=\"0\",model_name={}", label_value(service->model_id)),
                      service->engine.stats(), found == times_.end() ? nullptr : &found->second});
  }
  for (const Value& value : kValues) {
    head(out, value.name, value.type, value.help);
    for (const Labelled& model : models)
      out += fmt::format("vllm:{}{{{}}} {}\n", value.name, model.labels, value.of(model.stats));
  }
  head(out, "request_success_total", "counter", "requests by how they ended");
  for (const Labelled& model : models) finished_lines(out, model);
  head(out, "cache_config_info", "gauge", "the cache: tokens of a block, and blocks");
  for (const Labelled& model : models)
    out += fmt::format("vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1\n",
                       model.labels, model.stats.page_tokens, model.stats.pages);
  static const RequestTimes kNone;  // of a model that nobody has asked yet
  for (const Times& times : kTimes) {
    head(out, times.name, "histogram", times.help);
    for (const Labelled& model : models)
      ((model.times ? *model.times : kNone).*times.of)
          .print(out, fmt::format("vllm:{}", times.name), model.labels);
  }
}

}  // namespace sluice::server
