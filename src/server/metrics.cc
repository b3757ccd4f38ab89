#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::server {

namespace {

void line(std::string& out, const char* name, const char* type, const char* help, double value) {
  out +=
      fmt::format("# HELP sluice_{0} {1}\n# TYPE sluice_{0} {2}\nsluice_{0} {3}\n", name, help, type, value);
}

void engine_lines(std::string& out, const engine::EngineStats& stats) {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    line(out, name, "gauge", help, static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    line(out, name, "counter", help, static_cast<double>(value));
  };
  gauge("requests_running", "requests in the batch", stats.running);
  gauge("requests_waiting", "requests in the queue", stats.waiting);
  gauge("cache_pages", "pages of the cache", stats.pages);
  gauge("cache_pages_used", "pages of running requests", stats.used_pages);
  gauge("cache_pages_cached", "pages of prefixes that nobody uses now", stats.cached_pages);
  gauge("cache_pages_free", "pages that hold nothing", stats.free_pages);
  line(out, "cache_usage_ratio", "gauge", "share of the pages that running requests use",
       stats.pages > 0 ? static_cast<double>(stats.used_pages) / static_cast<double>(stats.pages) : 0);
  if (stats.has_store) {
    const auto& store = stats.store;
    gauge("cache_memory_pages", "pages of prompts in the host's memory", store.ram_pages);
    gauge("cache_memory_bytes", "bytes of these", store.ram_bytes);
    gauge("cache_memory_limit_bytes", "and as many there may be", store.ram_limit_bytes);
    gauge("cache_disk_pages", "this model's pages of prompts on disk", store.disk_pages);
    gauge("cache_disk_bytes", "bytes of all models' pages there", store.disk_all_bytes);
    gauge("cache_disk_limit_bytes", "and as many there may be", store.disk_limit_bytes);
    counter("cache_pages_kept_total", "pages copied off the device", store.kept_total);
    counter("cache_pages_brought_total", "pages copied back to it", stats.brought_pages_total);
    counter("cache_pages_written_total", "pages written to disk", store.written_total);
    counter("cache_pages_read_total", "pages read from disk", store.read_total);
    counter("cache_pages_damaged_total", "files on disk that were not what was written", store.damaged_total);
    counter("cache_pages_lost_total", "pages that the disk would not take", store.lost_total);
  }
  if (const program::ExpertUse& experts = stats.experts; experts.layers > 0) {
    gauge("expert_slots", "copies of experts of the CPU's memory that the GPU has room for", experts.slots);
    counter("experts_selected_total", "experts that rows selected in layers of the CPU", experts.selected);
    counter("experts_hit_total", "of those, experts of which the GPU had a copy", experts.hits);
    counter("experts_brought_total", "experts copied to the GPU while steps ran", experts.brought);
  }
  counter("requests_total", "requests taken", stats.requests_total);
  counter("prompt_tokens_total", "tokens of prompts", stats.prompt_tokens_total);
  counter("prompt_cached_tokens_total", "of those, tokens whose rows were in the cache",
          stats.cached_tokens_total);
  counter("prefix_hits_total", "requests of which a beginning was in the cache", stats.prefix_hits_total);
  counter("generated_tokens_total", "tokens generated", stats.generated_tokens_total);
  counter("draft_tokens_total", "tokens computed ahead of being drawn", stats.draft_tokens_total);
  counter("accepted_tokens_total", "of those, tokens that were right", stats.accepted_tokens_total);
  counter("preemptions_total", "requests that had to give their pages to others", stats.preemptions_total);
  counter("steps_total", "steps of the model", stats.steps_total);
  counter("rows_total", "rows of all steps", stats.rows_total);
  counter("prompt_rows_total", "of those, rows of prompts", stats.prompt_rows_total);
  line(out, "step_seconds_total", "counter", "time in which there was work", stats.step_seconds_total);
  out += "# HELP sluice_finished_total requests by how they ended\n# TYPE sluice_finished_total counter\n";
  for (int i = 0; i < engine::kFinishes; ++i) {
    out += fmt::format("sluice_finished_total{{reason=\"{}\"}} {}\n",
                       engine::finish_name(static_cast<engine::Finish>(i)), stats.finished_total[i]);
  }
}

}  // namespace

void Histogram::add_ns(int64_t ns) {
  const auto place = std::lower_bound(kBounds.begin(), kBounds.end(), static_cast<double>(ns) * 1e-9);
  counts_[static_cast<size_t>(place - kBounds.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
}

void Histogram::add(const Histogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i].load(std::memory_order_relaxed);
  sum_ns_ += other.sum_ns_.load(std::memory_order_relaxed);
}

void Histogram::print(std::string& out, std::string_view name, const std::string& labels) const {
  const std::string first = labels.empty() ? "" : labels + ",",
                    all = labels.empty() ? "" : "{" + labels + "}";
  int64_t sum = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{}le=\"{}\"}} {}\n", name, first, bound, sum);
  }
  out += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, all,
                     static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9, sum);
}

RequestTimes& Metrics::times(const std::string& model) {
  const std::lock_guard lock(mutex_);
  return times_[model];
}

std::string Metrics::text(const View& view, MetricNames names) const {
  std::string out;
  if (names != MetricNames::Vllm) own_names(out, view);
  if (names != MetricNames::Sluice) vllm_names(out, view);
  return out;
}

void Metrics::own_names(std::string& out, const View& view) const {
  line(out, "up", "gauge", "1 once the model is loaded", view.models.empty() ? 0 : 1);
  line(out, "ready", "gauge", "1 while requests are taken", view.ready ? 1 : 0);
  line(out, "http_connections", "gauge", "open connections", static_cast<double>(view.connections));
  line(out, "request_memory_bytes", "gauge", "memory that requests hold",
       static_cast<double>(view.memory_bytes));
  line(out, "request_memory_limit_bytes", "gauge", "and may", static_cast<double>(view.memory_limit));
  line(out, "http_requests_total", "counter", "HTTP requests", static_cast<double>(http_requests.load()));
  out += "# HELP sluice_http_responses_total HTTP answers by class of status\n";
  out += "# TYPE sluice_http_responses_total counter\n";
  for (size_t i = 2; i < http_responses.size(); ++i)
    out += fmt::format("sluice_http_responses_total{{status=\"{}xx\"}} {}\n", i, http_responses[i].load());
  RequestTimes all;  // of all models
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [model, times] : times_) {
      all.time_to_first_token.add(times.time_to_first_token);
      all.inter_token.add(times.inter_token);
      all.queue_time.add(times.queue_time);
      all.request_duration.add(times.request_duration);
    }
  }
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    out += fmt::format("# HELP sluice_{0} {1}\n# TYPE sluice_{0} histogram\n", name, help);
    values.print(out, fmt::format("sluice_{}", name), "");
  };
  histogram("time_to_first_token_seconds", "from a request's arrival to its first token",
            all.time_to_first_token);
  histogram("inter_token_seconds", "between two tokens of an answer", all.inter_token);
  histogram("queue_seconds", "from a request's arrival until its prompt is read", all.queue_time);
  histogram("request_seconds", "from a request's arrival to the end of its answer", all.request_duration);
  if (!view.models.empty()) engine_lines(out, view.models.front()->engine.stats());
}

}  // namespace sluice::server
