#include "cli/bench_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/version.h"
#include "profile/statistics.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A record as (field, value): llama-bench's first, in its order, then ours.
Json fields(const BenchRecord& r) {
  const std::vector<double> ts = r.samples_ts();
  const auto tokens = static_cast<double>(r.test.tokens());
  const double seconds = r.seconds();
  Json json = {{"build_commit", commit()},
               {"build_number", 0},
               {"cpu_info", cpu_name()},
               {"gpu_info", r.backend == "cuda" ? r.device.substr(0, r.device.find(", ")) : ""},
               {"backends", r.backend},
               {"model_filename", r.model.path},
               {"model_type", r.model.type},
               {"model_size", r.model.size_bytes},
               {"model_n_params", r.model.parameters},
               {"n_batch", r.n_batch},
               {"n_ubatch", r.n_ubatch},
               {"n_threads", r.threads},
               {"type_k", cache_type_name(r.test.cache)},
               {"n_gpu_layers", 0},
               {"n_prompt", r.test.prompt},
               {"n_gen", r.test.gen},
               {"n_depth", r.test.depth},
               {"test_time", r.time},
               {"avg_ns", static_cast<int64_t>(profile::mean(r.samples_ns))},
               {"stddev_ns", static_cast<int64_t>(profile::deviation(r.samples_ns))},
               {"avg_ts", profile::mean(ts)},
               {"stddev_ts", profile::deviation(ts)},
               {"test", r.test.name()},
               {"device", r.device},
               {"n_parallel", r.test.parallel},
               {"ttft_ns", static_cast<int64_t>(r.first_token_ns)},
               {"load_ns", static_cast<int64_t>(r.load_ns)},
               {"peak_memory_bytes", r.peak_memory_bytes},
               {"bytes_per_token", r.cost.bytes_read / tokens},
               {"flops_per_token", r.cost.flops / tokens},
               {"bytes_per_second", r.cost.bytes_read / seconds},
               {"flops_per_second", r.cost.flops / seconds},
               {"peak_bytes_per_second", r.peaks.bytes_per_second},
               {"peak_flops_per_second", r.peaks.flops},
               {"around_bytes_per_second", r.around_bytes_per_second},
               {"limit_ts", r.limit_seconds > 0 ? tokens / r.limit_seconds : 0.0},
               {"share_of_limit", r.limit_seconds / seconds},
               {"experts_distinct", r.experts.distinct},
               {"experts_uniform", r.experts.uniform}};
  return json;
}

/// With the samples, which only JSON can hold.
Json whole(const BenchRecord& record) {
  Json json = fields(record);
  Json ns = Json::array();
  for (const double sample : record.samples_ns) ns.push_back(static_cast<int64_t>(sample));
  json["samples_ns"] = std::move(ns);
  json["samples_ts"] = record.samples_ts();
  return json;
}

class JsonPrinter : public BenchPrinter {
 public:
  explicit JsonPrinter(std::FILE* out) : out_(out) {}
  void add(const BenchRecord& record) override { list_.push_back(whole(record)); }
  void end() override { print_to(out_, "{}\n", list_.dump(2)); }

 private:
  std::FILE* out_;
  Json list_ = Json::array();
};

class JsonLinesPrinter : public BenchPrinter {
 public:
  explicit JsonLinesPrinter(std::FILE* out) : out_(out) {}
  void add(const BenchRecord& record) override { print_to(out_, "{}\n", whole(record).dump()); }

 private:
  std::FILE* out_;
};

/// A value between quotes, those within doubled, as CSV and SQL both want it.
std::string quoted(const Json& value, char quote) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  std::string out(1, quote);
  for (const char c : text) out += c == quote ? std::string(2, quote) : std::string(1, c);
  return out + quote;
}

std::string joined(const Json& object, char quote) {
  std::string line;
  for (const auto& [name, value] : object.items()) line += (line.empty() ? "" : ",") + quoted(value, quote);
  return line;
}

class CsvPrinter : public BenchPrinter {
 public:
  explicit CsvPrinter(std::FILE* out) : out_(out) {}
  void begin() override {
    std::string line;
    const Json names = fields(BenchRecord{.samples_ns = {1}});
    for (const auto& [name, value] : names.items()) line += (line.empty() ? "" : ",") + name;
    print_to(out_, "{}\n", line);
  }
  void add(const BenchRecord& record) override { print_to(out_, "{}\n", joined(fields(record), '"')); }

 private:
  std::FILE* out_;
};

class SqlPrinter : public BenchPrinter {
 public:
  explicit SqlPrinter(std::FILE* out) : out_(out) {}
  void begin() override {
    const Json example = fields(BenchRecord{.samples_ns = {1}});
    std::string columns;
    for (const auto& [name, value] : example.items()) {
      const char* type = value.is_string() ? "TEXT" : (value.is_number_float() ? "REAL" : "INTEGER");
      columns += fmt::format("{}  {} {}", columns.empty() ? "" : ",\n", name, type);
      names_ += (names_.empty() ? "" : ", ") + name;
    }
    print_to(out_, "CREATE TABLE IF NOT EXISTS llama_bench (\n{}\n);\n\n", columns);
  }
  void add(const BenchRecord& record) override {
    print_to(out_, "INSERT INTO llama_bench ({}) VALUES ({});\n", names_, joined(fields(record), '\''));
  }

 private:
  std::FILE* out_;
  std::string names_;
};

/// Columns of fixed width, so that rows stand below each other as they come.
class MarkdownPrinter : public BenchPrinter {
 public:
  MarkdownPrinter(std::FILE* out, size_t longest_test)
      : out_(out), test_width_(std::max<size_t>(longest_test, 20)) {}
  void add(const BenchRecord& r) override {
    if (!headed_) head(r);
    const std::vector<double> ts = r.samples_ts();
    const double limit = r.limit_seconds;
    print_to(
        out_, "| {:<{}} | {:>10} | {:>8} | {:<8} | {:>7} | {:>{}} | {:>20} | {:>9.1f} | {:>7.2f} | {:>8} |\n",
        r.model.type, width_, fmt::format("{:.2f} GiB", static_cast<double>(r.model.size_bytes) / 0x1p30),
        fmt::format("{:.2f} {}",
                    static_cast<double>(r.model.parameters) * (r.model.parameters >= 1e9 ? 1e-9 : 1e-6),
                    r.model.parameters >= 1e9 ? "B" : "M"),
        r.backend, r.threads, r.test.name(), test_width_,
        fmt::format("{:.2f} ± {:.2f}", profile::mean(ts), profile::deviation(ts)),
        1e-6 * r.cost.bytes_read / static_cast<double>(r.test.tokens()),
        1e-9 * r.cost.bytes_read / r.seconds(),
        limit > 0 ? fmt::format("{:.1f} %", 100 * limit / r.seconds()) : "-");
  }

 private:
  void head(const BenchRecord& r) {
    headed_ = true;
    width_ = std::max<size_t>(r.model.type.size(), 26);
    print_to(out_, "| {:<{}} | {:>10} | {:>8} | {:<8} | {:>7} | {:>{}} | {:>20} | {:>9} | {:>7} | {:>8} |\n",
             "model", width_, "size", "params", "backend", "threads", "test", test_width_, "t/s", "MB/token",
             "GB/s", "of limit");
    print_to(out_,
             "| {:-<{}} | {:->9}: | {:->7}: | {:-<8} | {:->6}: | {:->{}}: | {:->19}: | {:->8}: | {:->6}: | "
             "{:->7}: |\n",
             "", width_, "", "", "", "", "", test_width_ - 1, "", "", "", "");
  }

  std::FILE* out_;
  bool headed_ = false;
  size_t width_ = 0, test_width_;
};

}  // namespace

std::string BenchTest::name() const {
  std::string text;
  if (prompt > 0) text = fmt::format("pp{}", prompt);
  if (gen > 0) text += fmt::format("{}tg{}", prompt > 0 ? "+" : "", gen);
  if (parallel > 1) text += fmt::format(" x {}", parallel);
  if (depth > 0) text += fmt::format(" @ d{}", depth);
  if (cache != quant::Type::F16) text += " ctk " + cache_type_name(cache);
  return text;
}

std::vector<double> BenchRecord::samples_ts() const {
  std::vector<double> list;
  for (const double ns : samples_ns) list.push_back(1e9 * static_cast<double>(test.tokens()) / ns);
  return list;
}

double BenchRecord::seconds() const { return 1e-9 * profile::mean(samples_ns); }

std::unique_ptr<BenchPrinter> make_bench_printer(const std::string& flag, const std::string& format,
                                                 std::FILE* out, size_t longest_test) {
  if (format == "md") return std::make_unique<MarkdownPrinter>(out, longest_test);
  if (format == "csv") return std::make_unique<CsvPrinter>(out);
  if (format == "json") return std::make_unique<JsonPrinter>(out);
  if (format == "jsonl") return std::make_unique<JsonLinesPrinter>(out);
  if (format == "sql") return std::make_unique<SqlPrinter>(out);
  throw UsageError(fmt::format("{} {}: expected md, csv, json, jsonl or sql", flag, format));
}

std::string BenchRecord::marks() const {
  std::string text = fmt::format("loaded in {:.2f} s", 1e-9 * load_ns);
  if (first_token_ns > 0) text += fmt::format(", first token after {:.1f} ms", 1e-6 * first_token_ns);
  if (peak_memory_bytes > 0)
    text += fmt::format(", {:.2f} GB of memory at most", 1e-9 * static_cast<double>(peak_memory_bytes));
  if (peaks.bytes_per_second != around_bytes_per_second)
    text += fmt::format(", read bandwidth between steps {:.1f} GB/s", 1e-9 * peaks.bytes_per_second);
  if (exchange_ns > 0) {
    const double measured_ns = std::accumulate(samples_ns.begin(), samples_ns.end(), 0.0);
    text += fmt::format(", {:.0f}% of the time between ranks", 100 * exchange_ns / measured_ns);
  }
  return text;
}

}  // namespace sluice::cli
