// sluice forecast: what hardware could do at most with a model, from the Program's own costs: no measurement.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/hardware.h"
#include "cli/loading.h"
#include "cli/measured_steps.h"
#include "cli/model_shapes.h"
#include "cli/number_list.h"
#include "cli/output.h"
#include "gguf/synth.h"
#include "profile/report_json.h"
#include "profile/report_text.h"

namespace sluice::cli {
namespace {

constexpr int64_t kMostSequences = 256;

struct Options {
  std::string model, shapes, mix = gguf::synth_mixes()[0].name, preset, bandwidth, flops;
  std::string depths = "0", batches = "1", prompts = "0";
  bool ops = false, records = false, json = false;
  quant::Type cache = quant::Type::F16;
};

program::Peaks peaks_of(const Options& options) {
  program::Peaks peaks;
  for (const Hardware& hardware : hardware_presets()) {
    if (options.preset != hardware.name) continue;
    peaks.bytes_per_second = hardware.bytes_per_second;
    peaks.flops = hardware.flops;
    peaks.read_how = hardware.source;
  }
  if (!options.bandwidth.empty()) peaks.bytes_per_second = parse_rate("--bandwidth", options.bandwidth);
  if (!options.flops.empty()) peaks.flops = parse_rate("--flops", options.flops);
  if (peaks.bytes_per_second <= 0) throw UsageError("forecast wants --preset or --bandwidth");
  return peaks;
}

/// One step on the null backend, as a profile: a prompt of `rows` tokens, or a token of `batch` sequences.
profile::Report step_report(program::Backend& backend, const model::Model& model, int64_t depth,
                            int64_t batch, int64_t prompt, profile::Group group) {
  const int64_t rows = std::max<int64_t>(prompt, batch), context = depth + std::max<int64_t>(prompt, 1);
  if (context > model.spec.context)
    fail("{} tokens are asked for, and the context is {}", context, model.spec.context);
  const auto sequences = static_cast<int32_t>(prompt > 0 ? 1 : batch);
  const auto executable = backend.compile(model.program, model.weights, {});
  MeasuredSteps steps(*executable, rows, sequences, context, 1);
  program::StepTimes times;
  steps.time_into(&times);
  prompt > 0 ? steps.prompt_step(depth, prompt) : steps.decode_step(depth, sequences);
  const std::vector<profile::Sample> samples = {
      {profile::take_apart(times, executable->program().ops().size()), times.end_ns - times.begin_ns}};
  const auto row_count = static_cast<double>(rows), before = static_cast<double>(depth);
  program::StepShape shape{.rows = row_count};
  if (prompt > 0) {
    shape.context = before + (row_count + 1) / 2;
    shape.cache_rows = before + row_count;
  } else {
    shape.outputs = row_count;
    shape.context = before + 1;
    shape.cache_rows = row_count * shape.context;
    shape.sequences = row_count;
  }
  const std::vector<program::BoundKernel> kernels = executable->bound();
  profile::Report report =
      profile::make_report({executable->program(), kernels, samples, {}, shape, backend.peaks(), group});
  report.workers = 1;
  report.test = fmt::format("{}{}{}", prompt > 0 ? fmt::format("pp{}", prompt) : "tg1",
                            batch > 1 && prompt == 0 ? fmt::format(" x {}", batch) : "",
                            depth > 0 ? fmt::format(" @ d{}", depth) : "");
  return report;
}

std::vector<profile::Report> reports_of(const Options& options, const model::Model& model,
                                        const program::Peaks& peaks) {
  const auto backend = make_forecast_backend(peaks);
  const profile::Group group = options.records ? profile::Group::Record : profile::Group::Op;
  std::vector<profile::Report> reports;
  for (const int64_t depth : number_list("-d", options.depths, 0)) {
    for (const int64_t prompt : number_list("-p", options.prompts, 0)) {
      if (prompt > 0) reports.push_back(step_report(*backend, model, depth, 1, prompt, group));
    }
    for (const int64_t batch : number_list("--batch", options.batches, 1)) {
      if (batch > kMostSequences)
        throw UsageError(fmt::format("--batch {}: {} at most", batch, kMostSequences));
      reports.push_back(step_report(*backend, model, depth, batch, 0, group));
    }
  }
  return reports;
}

void print_tables(const Options& options, const std::vector<profile::Report>& reports,
                  const program::Peaks& peaks) {
  const std::string rate = peaks.flops > 0 ? fmt::format("{:.2f} TFLOP/s", 1e-12 * peaks.flops)
                                           : std::string("any arithmetic rate");
  std::string text = fmt::format("at {:.1f} GB/s and {}{}\n\n", 1e-9 * peaks.bytes_per_second, rate,
                                 peaks.read_how.empty() ? "" : " (" + peaks.read_how + ")");
  text += fmt::format(
      "| {:<18} | {:>9} | {:>11} | {:>9} | {:>12} |\n| {:-<18} | {:->8}: | {:->10}: | {:->8}: | {:->11}: |\n",
      "step", "MB read", "GFLOP", "ms a step", "tokens/s", "", "", "", "", "");
  for (const profile::Report& report : reports) {
    text += fmt::format("| {:<18} | {:>9.1f} | {:>11.2f} | {:>9.3f} | {:>12.1f} |\n", report.test,
                        1e-6 * report.cost.bytes_read, 1e-9 * report.cost.flops, 1e-3 * report.limit_us,
                        1e6 * report.tokens / report.limit_us);
  }
  print_text(text);
  if (!options.ops && !options.records) return;
  for (const profile::Report& report : reports) print_text("\n" + profile::report_text(report, false));
}

void forecast(const Options& options) {
  const program::Peaks peaks = peaks_of(options);
  std::optional<ModelShapes> shapes;
  std::optional<OpenedModel> file;
  if (options.shapes.empty()) {
    file.emplace(open_model(model_path_or_bundled(options.model), options.cache));
  } else {
    shapes.emplace(options.shapes, options.mix, options.cache);
  }
  const std::vector<profile::Report> reports =
      reports_of(options, shapes ? shapes->model() : static_cast<const model::Model&>(*file), peaks);
  if (!options.json) return print_tables(options, reports, peaks);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const profile::Report& report : reports) list.push_back(profile::report_json(report));
  print_text(nlohmann::ordered_json{{"reports", std::move(list)}}.dump(2) + "\n");
}

std::string preset_help() {
  std::string text = "Presets, with whose figures they are:\n";
  for (const Hardware& hardware : hardware_presets()) {
    text += fmt::format("  {:<13} {:>6.0f} GB/s {:>7.1f} TFLOP/s  {}\n", hardware.name,
                        1e-9 * hardware.bytes_per_second, 1e-12 * hardware.flops, hardware.source);
  }
  return text +
         "A forecast is the best that could be: every byte read once at full bandwidth, every op at full "
         "rate,\n"
         "nothing between ops; distinct experts of a batch as under uniform selection.";
}

}  // namespace

void add_forecast(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("forecast", "Tell what hardware could do at most with a model, without having it");
  command->footer(preset_help());
  CLI::Option* model =
      command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--shapes", options->shapes, "instead of a file: a model of sluice synth")
      ->excludes(model);
  command
      ->add_option("--mix", options->mix, "with --shapes: which tensors get which type, as in sluice synth")
      ->capture_default_str();
  std::vector<std::string> names;
  for (const Hardware& hardware : hardware_presets()) names.emplace_back(hardware.name);
  command->add_option("--preset", options->preset, "known hardware, listed below")
      ->check(CLI::IsMember(names));
  command->add_option("--bandwidth", options->bandwidth,
                      "memory bandwidth, as 100GB/s; overrides the preset's");
  command->add_option("--flops", options->flops,
                      "arithmetic rate, as 2T; overrides the preset's; without it no limit");
  command
      ->add_option("-d,--n-depth", options->depths, "tokens of context; lists and ranges as in sluice bench")
      ->capture_default_str();
  command->add_option("--batch", options->batches, "sequences that decode together")->capture_default_str();
  command->add_option("-p,--n-prompt", options->prompts, "also a step over a prompt of so many tokens")
      ->capture_default_str();
  command->add_flag("--ops", options->ops, "show the limits op by op");
  command->add_flag("--records", options->records, "show the limits of every record of a step");
  add_cache_option(*command, options->cache);
  command->add_flag("--json", options->json, "print JSON, as sluice profile --json does");
  command->callback([options] { forecast(*options); });
}

}  // namespace sluice::cli
