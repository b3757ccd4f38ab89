// sluice profile: where the time of a step goes, op by op, and how far each op is from the hardware's limit.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/kernel_source.h"
#include "cli/loading.h"
#include "cli/measured_steps.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/version.h"
#include "profile/report_html.h"
#include "profile/report_json.h"
#include "profile/report_text.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kStepRows = 512;
constexpr int64_t kLeastPromptSteps = 6, kMostPromptSteps = 100;  // timed and untimed ones together
constexpr int64_t kPromptNs = 2'000'000'000;                      // for more than the least
constexpr size_t kTracedSteps = 4;
constexpr int64_t kDepthSteps = 5;  // for each point of the speed over depth
constexpr int64_t kDepthBudgetNs = 20'000'000'000;

struct ProfileOptions {
  std::string model, backend = "cpu", json, trace, html;
  int64_t prompt = 0, gen = -1, depth = 0;
  int batch = 1, threads = 0;
  bool layers = false, weights = false, records = false, with_source = false, markdown = false,
       no_repack = false;
  quant::Type cache = quant::Type::F16;

  int64_t decode_steps() const { return gen >= 0 ? gen : (prompt > 0 ? 0 : 32); }
};

/// What one kind of step was measured at: the report's input.
struct MeasuredOps {
  std::string test;
  std::vector<profile::Sample> samples;
  std::vector<double> untimed_ns;
  program::StepShape shape;
  profile::ExpertCount experts;
  std::vector<program::StepTimes> traced;
  std::vector<program::BoundKernel> kernels;  ///< of these steps
  program::Peaks peaks;                       ///< their bandwidth measured between the steps, where it drifts
  int workers = 0;
};

/// A model ready to be measured.
class Profiler {
 public:
  explicit Profiler(const ProfileOptions& options)
      : options_(options), model_(open_model(model_path_or_bundled(options.model), options.cache)) {
    const int64_t last = options.depth + std::max(options.prompt, 2 * options.decode_steps() + 1);
    if (last > model_.spec.context) {
      fail("{} tokens are asked for, and the context of {} is {}", last, model_.file.path(),
           model_.spec.context);
    }
    context_ = std::min(model_.spec.context,
                        options.html.empty() ? last : std::max<int64_t>(last, 4096 + kDepthSteps));
    const int64_t rows = std::max<int64_t>(
        options.batch, options.prompt > 0 || options.depth > 0 || !options.html.empty() ? kStepRows : 1);
    backend_ = make_backend(options.backend, options.threads, {!options.no_repack, model_.packed});
    executable_ = backend_->compile(model_.program, model_.weights,
                                    {.max_rows = rows,
                                     .max_outputs = options.batch,
                                     .cache_pages = MeasuredSteps::pages(options.batch, context_),
                                     .state_slots = MeasuredSteps::state_slots(options.batch)},
                                    loading_bar());
    steps_ = std::make_unique<MeasuredSteps>(*executable_, rows, options.batch, context_, 1);
  }

  const model::Model& model() const { return model_; }
  program::Backend& backend() { return *backend_; }
  const program::Program& program() const { return executable_->program(); }

  /// Decode steps of all sequences: timed and untimed ones take turns, after one of each that warms up.
  MeasuredOps decode() {
    const int64_t count = 2 * options_.decode_steps();
    MeasuredOps result;
    result.test = fmt::format("tg{}{}{}", options_.decode_steps(),
                              options_.batch > 1 ? fmt::format(" x {}", options_.batch) : "", depth_text());
    steps_->fill(options_.depth, options_.batch, prompt_bar());
    const auto rows = static_cast<double>(options_.batch);
    const double context = static_cast<double>(options_.depth) + 1 + static_cast<double>(count + 1) / 2;
    const program::StepShape shape{
        .rows = rows, .outputs = rows, .context = context, .cache_rows = rows * context, .sequences = rows};
    warm_up([&] { steps_->decode_step(options_.depth, options_.batch); });
    ReadTurns turns(*backend_, program::total_cost(program(), shape).bytes_read);
    steps_->read_between(&turns);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = options_.depth + 1 + i;
      add(
          result, i % 2 == 0, [&] { return steps_->decode_step(position, options_.batch); }, options_.batch);
    }
    finish(result, shape, turns);
    return result;
  }

  /// Steps over a prompt, all of the same number of rows, again and again until there are enough.
  MeasuredOps prompt() {
    const int64_t count = (options_.prompt + kStepRows - 1) / kStepRows, rows = options_.prompt / count;
    MeasuredOps result;
    result.test = fmt::format("pp{}{}", rows * count, depth_text());
    steps_->fill(options_.depth, 1, prompt_bar());
    const auto depth = static_cast<double>(options_.depth), all = static_cast<double>(rows * count);
    const program::StepShape shape{.rows = static_cast<double>(rows),
                                   .context = depth + (all + 1) / 2,
                                   .cache_rows = depth + (all + static_cast<double>(rows)) / 2};
    warm_up([&] { steps_->prompt_step(options_.depth, rows); });
    ReadTurns turns(*backend_, program::total_cost(program(), shape).bytes_read);
    steps_->read_between(&turns);
    // An odd number of steps in a turn is timed the other way round in the next.
    const int64_t least = std::max(2 * count, kLeastPromptSteps), began = now_ns();
    // Whole turns, in pairs: as many timed steps as untimed ones at each position.
    const auto goes_on = [&](int64_t done) {
      return done < least || done % (2 * count) != 0 ||
             (done < kMostPromptSteps && now_ns() - began < kPromptNs);
    };
    for (int64_t i = 0; goes_on(i); ++i) {
      const int64_t turn = i / count, position = options_.depth + i % count * rows;
      add(
          result, (i + (count % 2 == 0 ? turn : 0)) % 2 == 0,
          [&] { return steps_->prompt_step(position, rows); }, rows);
    }
    finish(result, shape, turns);
    return result;
  }

  /// Decode speed at growing depths, as far as some seconds of filling go.
  /// peaks: whose limit stands beside it.
  std::vector<profile::DepthSpeed> speeds(const program::Peaks& peaks) {
    std::vector<profile::DepthSpeed> list;
    const int64_t began = now_ns();
    for (int64_t depth = 0; depth + kDepthSteps <= context_; depth = depth == 0 ? 256 : 2 * depth) {
      steps_->fill(depth, 1, prompt_bar());
      std::vector<double> ns;
      for (int64_t i = 0; i < kDepthSteps; ++i)
        ns.push_back(static_cast<double>(steps_->decode_step(depth + i, 1)));
      const double context = static_cast<double>(depth) + static_cast<double>(kDepthSteps + 1) / 2;
      const double limit =
          peaks.limit_seconds(program::total_cost(program(), {.context = context, .cache_rows = context}));
      list.push_back({context, 1e9 / profile::median(ns), limit > 0 ? 1 / limit : 0});
      if (now_ns() - began > kDepthBudgetNs / 3) break;  // the next depth takes as long as all before it
    }
    return list;
  }

 private:
  /// " @ d4096 ctk q8_0".
  std::string depth_text() const {
    return (options_.depth > 0 ? fmt::format(" @ d{}", options_.depth) : "") +
           (options_.cache != quant::Type::F16 ? " ctk " + cache_type_name(options_.cache) : "");
  }

  /// A step of either kind: what is captured or allocated for them is there when the clock starts.
  template <typename Step>
  void warm_up(Step step) {
    for (program::StepTimes* times : {static_cast<program::StepTimes*>(nullptr), &times_}) {
      steps_->time_into(times);
      step();
    }
    steps_->time_into(nullptr);
  }

  template <typename Step>
  void add(MeasuredOps& result, bool timed, Step step, int64_t rows) {
    steps_->time_into(timed ? &times_ : nullptr);
    const int64_t ns = step();
    steps_->time_into(nullptr);
    if (!timed) {
      result.untimed_ns.push_back(static_cast<double>(ns));
      return;
    }
    result.samples.push_back({profile::take_apart(times_, program().ops().size()), ns});
    result.workers = times_.workers;
    if (rows > 1) {
      const profile::ExpertCount count = profile::count_experts(*executable_, rows);
      result.experts.distinct += count.distinct;
      result.experts.uniform += count.uniform;
    }
    if (!options_.trace.empty() && result.traced.size() < kTracedSteps) result.traced.push_back(times_);
  }

  void finish(MeasuredOps& result, program::StepShape shape, const ReadTurns& turns) const {
    steps_->read_between(nullptr);
    result.peaks = backend_->peaks();
    if (turns.bytes_per_second() > 0) result.peaks.bytes_per_second = turns.bytes_per_second();
    result.kernels = executable_->bound_for(std::llround(shape.rows), std::llround(shape.context));
    const auto count = static_cast<double>(std::max<size_t>(result.samples.size(), 1));
    result.experts.distinct /= count;
    result.experts.uniform /= count;
    shape.selected = result.experts.distinct;
    result.shape = shape;
  }

  const ProfileOptions& options_;
  OpenedModel model_;
  int64_t context_ = 0;
  std::unique_ptr<program::Backend> backend_;
  std::unique_ptr<program::Executable> executable_;
  std::unique_ptr<MeasuredSteps> steps_;
  program::StepTimes times_;
};

profile::Report report_of(const ProfileOptions& options, Profiler& profiler, const MeasuredOps& measured) {
  const profile::Group group = options.layers    ? profile::Group::Layer
                               : options.weights ? profile::Group::Weight
                               : options.records ? profile::Group::Record
                                                 : profile::Group::Op;
  profile::Report report = profile::make_report({profiler.program(), measured.kernels, measured.samples,
                                                 measured.untimed_ns, measured.shape, measured.peaks, group});
  report.test = measured.test;
  report.experts = measured.experts;
  report.workers = measured.workers;
  return report;
}

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") return print_text(text);
  write_file(path, std::as_bytes(std::span(text)));
}

/// The same file name without folders and with nothing that a terminal or page would mind.
std::string file_name(const model::Model& model) {
  const std::string& path = model.file.path();
  return gguf::printable(path.substr(path.rfind('/') + 1));
}

/// The command line, where the system tells it.
std::string command_line() {
  std::string line;
  try {
    line = read_file("/proc/self/cmdline");
  } catch (const Error&) {
    return "";
  }
  while (line.ends_with('\0')) line.pop_back();
  std::ranges::replace(line, '\0', ' ');
  return gguf::printable(line, 4096);
}

std::vector<profile::Fact> facts_of(Profiler& profiler) {
  std::vector<profile::Fact> facts = {
      {"date", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))},
      {"machine", fmt::format("{}, {} threads at once", cpu_name(), usable_threads())},
      {"device", profiler.backend().device()},
      {"model", gguf::printable(profiler.model().file.path(), 4096)}};
  if (const std::string line = command_line(); !line.empty()) facts.push_back({"command", line});
  return facts;
}

void profile(const ProfileOptions& options) {
  if (options.prompt == 0 && options.decode_steps() == 0) throw UsageError("-p 0 -n 0: nothing to profile");
  for (const std::string* file : {&options.json, &options.trace, &options.html}) expect_writable(*file);
  Profiler profiler(options);
  std::vector<profile::Report> reports;
  std::vector<program::StepTimes> traced;
  const double bandwidth_before = profiler.backend().measure_read_bandwidth();
  std::vector<program::BoundKernel> kernels;  // of the last: a trace names an op's kernel once
  program::Peaks peaks;                       // of the last, too: the page has one limit
  for (const bool prompt : {true, false}) {
    if (prompt ? options.prompt == 0 : options.decode_steps() == 0) continue;
    const MeasuredOps measured = prompt ? profiler.prompt() : profiler.decode();
    kernels = measured.kernels;
    peaks = measured.peaks;
    reports.push_back(report_of(options, profiler, measured));
    traced.insert(traced.end(), measured.traced.begin(), measured.traced.end());
  }
  const std::string title = fmt::format("{} on {}", file_name(profiler.model()), profiler.backend().name());
  if (options.json != "-") {
    for (const profile::Report& report : reports) {
      print_text(options.markdown
                     ? profile::report_markdown(report)
                     : fmt::format("{}, {}\n", title, profile::report_text(report, options.with_source)));
      if (options.with_source) print_text(sources_text(report));
    }
  }
  if (!options.json.empty()) {
    Json list = Json::array();
    for (const profile::Report& report : reports) list.push_back(profile::report_json(report));
    const Json json = {{"sluice", version()},
                       {"model", file_name(profiler.model())},
                       {"backend", profiler.backend().name()},
                       {"cpu", cpu_name()},
                       {"device", profiler.backend().device()},
                       {"bandwidth_before", bandwidth_before},
                       {"bandwidth_after", profiler.backend().measure_read_bandwidth()},
                       {"reports", std::move(list)}};
    write_text(options.json, json.dump(2) + "\n");
  }
  if (!options.trace.empty()) {
    write_text(options.trace, profile::trace_json(profiler.program(), kernels, traced));
  }
  if (!options.html.empty()) {
    const auto speeds = options.batch == 1 ? profiler.speeds(peaks) : std::vector<profile::DepthSpeed>{};
    write_text(options.html,
               profile::report_html({"Profile: " + title,
                                     fmt::format("{}, sluice {}", profiler.backend().device(), version()),
                                     reports, speeds, facts_of(profiler), peaks.bytes_per_second}));
  }
}

/// Exit code 3 tells a regression from a failure.
constexpr int kRegression = 3;

struct DiffOptions {
  std::string before, after;
  double fail_above = -1;
};

/// Files of several runs, with commas between.
std::vector<profile::ProfileFile> read_profiles(const std::string& paths) {
  std::vector<profile::ProfileFile> list;
  for (size_t begin = 0; begin <= paths.size();) {
    const size_t end = std::min(paths.find(',', begin), paths.size());
    const std::string path = paths.substr(begin, end - begin);
    const std::string text = read_file(path);
    if (!text::is_json(text)) fail("{}: no JSON", path);
    list.push_back({path, text::parse_plain(text)});
    begin = end + 1;
  }
  return list;
}

void diff(const DiffOptions& options) {
  const auto before = read_profiles(options.before), after = read_profiles(options.after);
  const profile::Diff result = profile::compare(before, after);
  print_text(result.text);
  if (options.fail_above < 0 || result.worst_percent <= options.fail_above) return;
  note("sluice: slower by {:.1f} %, and {:g} % were allowed\n", result.worst_percent, options.fail_above);
  throw CLI::RuntimeError(kRegression);
}

void add_diff(CLI::App& command) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* diff_command =
      command.add_subcommand("diff", "Compare two profiles op by op: what got faster or slower");
  diff_command
      ->add_option("BEFORE", options->before,
                   "a file of sluice profile --json; several runs: A.json,B.json,C.json")
      ->required();
  diff_command->add_option("AFTER", options->after, "another one, or several")->required();
  diff_command
      ->add_option(
          "--fail-above", options->fail_above,
          "exit with 3 when an op or the step is slower by more than so many percent, beyond noise and "
          "by a thousandth of the step at least")
      ->check(number_range(0.0, 1e6));
  diff_command->callback([options] { diff(*options); });
}

}  // namespace

void add_profile(CLI::App& app) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile", "Show where the time of a step goes, op by op, and how far from the hardware's limit");
  command->require_subcommand(0, 1);
  command->footer(
      "Timed steps take turns with untimed ones; the middle half of the timed ones by wall time counts. An "
      "op's\n"
      "time is what it adds: from its predecessor's end to its own, on the worker that ends last. \"of "
      "peak\" is\n"
      "the time that the measured bandwidth and arithmetic rate would need, as a share of the time taken.");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("-p,--n-prompt", options->prompt, "profile steps over a prompt of so many tokens")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("-n,--n-gen", options->gen, "decode steps to time (default: 32, or 0 with -p)")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("-d,--n-depth", options->depth, "tokens of context before them")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--batch", options->batch, "sequences that decode together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  CLI::Option* layers =
      command->add_flag("--layers", options->layers, "a row for each kind of op in each layer");
  CLI::Option* weights =
      command
          ->add_flag("--weights", options->weights, "a row for each kind of op and the weight that it reads")
          ->excludes(layers);
  command->add_flag("--records", options->records, "a row for every op of a step")
      ->excludes(layers)
      ->excludes(weights);
  command->add_flag("--with-source", options->with_source,
                    "show each kernel's resources too, and the source of the three that take most");
  command->add_flag("--md", options->markdown, "print Markdown tables");
  command->add_option("--json", options->json,
                      "write all figures to a file; - for standard output, instead of the table");
  command->add_option("--trace", options->trace,
                      "write some steps as a trace for Perfetto or chrome://tracing");
  command->add_option("--html", options->html, "write a page with plots");
  add_loading_option(*command, options->no_repack);
  add_cache_option(*command, options->cache);
  add_diff(*command);
  command->callback([options, command] {
    if (command->get_subcommands().empty()) profile(*options);
  });
}

}  // namespace sluice::cli
