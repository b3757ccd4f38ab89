// sluice forecast: what hardware could do at most with a model, from the Program's own costs: no measurement.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/fit.h"
#include "cli/hardware.h"
#include "cli/loading.h"
#include "cli/measured_steps.h"
#include "cli/model_shapes.h"
#include "cli/number_list.h"
#include "cli/output.h"
#include "cli/shared_limit.h"
#include "gguf/synth.h"
#include "profile/report_json.h"
#include "profile/report_text.h"
#include "program/offload.h"

namespace sluice::cli {
namespace {

constexpr int64_t kMostSequences = 256;

struct ForecastOptions {
  std::string model, shapes, mix = gguf::synth_mixes()[0].name, preset, bandwidth, flops;
  std::string depths = "0", batches = "1", prompts = "0";
  bool ops = false, records = false, json = false;
  quant::Type cache = quant::Type::F16;
  // Of a card that has too little memory.
  std::string cpu = "ddr5-desktop", cpu_bandwidth, cpu_flops, link;
  int64_t gpu_memory = 0;
  std::vector<double> hit_rates;
};

program::Peaks peaks_of(const std::string& preset) {
  program::Peaks peaks;
  if (const Hardware* hardware = find_hardware(preset)) {
    peaks.bytes_per_second = hardware->bytes_per_second;
    peaks.flops = hardware->flops;
    peaks.read_how = hardware->source;
  }
  return peaks;
}

program::Peaks peaks_of(const ForecastOptions& options) {
  program::Peaks peaks = peaks_of(options.preset);
  if (!options.bandwidth.empty()) peaks.bytes_per_second = parse_rate("--bandwidth", options.bandwidth);
  if (!options.flops.empty()) peaks.flops = parse_rate("--flops", options.flops);
  if (peaks.bytes_per_second <= 0) throw UsageError("forecast wants --preset or --bandwidth");
  return peaks;
}

/// A step: a prompt of so many tokens, or, where that is 0, a token of each sequence.
struct Asked {
  int64_t depth, batch, prompt;

  int64_t rows() const { return std::max(prompt, batch); }
  std::string name() const {
    return fmt::format("{}{}{}", prompt > 0 ? fmt::format("pp{}", prompt) : "tg1",
                       batch > 1 && prompt == 0 ? fmt::format(" x {}", batch) : "",
                       depth > 0 ? fmt::format(" @ d{}", depth) : "");
  }
  program::StepShape shape() const {
    const auto row_count = static_cast<double>(rows()), before = static_cast<double>(depth);
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
    return shape;
  }
};

/// All steps that are asked for. Throws where one has more tokens than the model's context.
std::vector<Asked> steps_of(const ForecastOptions& options, const model::Model& model) {
  std::vector<Asked> list;
  for (const int64_t depth : number_list("-d", options.depths, 0)) {
    for (const int64_t prompt : number_list("-p", options.prompts, 0)) {
      if (prompt > 0) list.push_back({depth, 1, prompt});
    }
    for (const int64_t batch : number_list("--batch", options.batches, 1)) {
      if (batch > kMostSequences)
        throw UsageError(fmt::format("--batch {}: {} at most", batch, kMostSequences));
      list.push_back({depth, batch, 0});
    }
  }
  for (const Asked& step : list) {
    if (const int64_t context = step.depth + std::max<int64_t>(step.prompt, 1); context > model.spec.context)
      fail("{} tokens are asked for, and the context is {}", context, model.spec.context);
  }
  return list;
}

/// One step on the null backend, as a profile.
profile::Report step_report(program::Backend& backend, const model::Model& model, const Asked& step,
                            profile::Group group) {
  const auto [depth, batch, prompt] = step;
  const int64_t rows = step.rows(), context = depth + std::max<int64_t>(prompt, 1);
  const auto sequences = static_cast<int32_t>(prompt > 0 ? 1 : batch);
  const auto executable = backend.compile(model.program, model.weights, {});
  MeasuredSteps steps(*executable, rows, sequences, context, 1);
  program::StepTimes times;
  steps.time_into(&times);
  prompt > 0 ? steps.prompt_step(depth, prompt) : steps.decode_step(depth, sequences);
  const std::vector<profile::Sample> samples = {
      {profile::take_apart(times, executable->program().ops().size()), times.end_ns - times.begin_ns}};
  const std::vector<program::BoundKernel> kernels = executable->bound();
  profile::Report report = profile::make_report(
      {executable->program(), kernels, samples, {}, step.shape(), backend.peaks(), group});
  report.workers = 1;
  report.test = step.name();
  return report;
}

std::vector<profile::Report> reports_of(const ForecastOptions& options, const model::Model& model,
                                        const program::Peaks& peaks) {
  const auto backend = make_forecast_backend(peaks);
  const profile::Group group = options.records ? profile::Group::Record : profile::Group::Op;
  std::vector<profile::Report> reports;
  for (const Asked& step : steps_of(options, model))
    reports.push_back(step_report(*backend, model, step, group));
  return reports;
}

void print_tables(const ForecastOptions& options, const std::vector<profile::Report>& reports,
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

/// A card with less memory than a model needs, and the computer around it.
struct Card {
  SharedPeaks peaks;
  int64_t gpu_bytes = 0;
};

/// Nothing where the card's memory is not known, or the model has room with the contexts that are asked for.
std::optional<Card> shared_card(const ForecastOptions& options, const model::Model& model,
                                const program::Peaks& peaks) {
  const Hardware* hardware = find_hardware(options.preset);
  Card card{.gpu_bytes = options.gpu_memory};
  if (card.gpu_bytes == 0 && hardware != nullptr) card.gpu_bytes = hardware->gpu_bytes;
  if (!options.hit_rates.empty() && card.gpu_bytes == 0)
    throw UsageError("--hit-rate: wants --gpu-memory, or a preset of a card");
  if (card.gpu_bytes == 0) return {};
  int64_t longest = 0;
  for (const Asked& step : steps_of(options, model)) longest = std::max(longest, step.depth + step.rows());
  if (share_with_room(model.program, longest, card.gpu_bytes) == 1 && options.gpu_memory == 0 &&
      options.hit_rates.empty())
    return {};
  card.peaks.gpu = peaks;
  card.peaks.cpu = peaks_of(options.cpu);
  if (!options.cpu_bandwidth.empty())
    card.peaks.cpu.bytes_per_second = parse_rate("--cpu-bandwidth", options.cpu_bandwidth);
  if (!options.cpu_flops.empty()) card.peaks.cpu.flops = parse_rate("--cpu-flops", options.cpu_flops);
  if (hardware != nullptr) card.peaks.link_bytes_per_second = hardware->link_bytes_per_second;
  if (!options.link.empty()) card.peaks.link_bytes_per_second = parse_rate("--link", options.link);
  return card;
}

/// A step of the GPU and the CPU together.
struct SharedStep {
  Asked asked;
  double hit_rate;
  SharedLimit limit;

  double tokens_per_second() const { return static_cast<double>(asked.rows()) / limit.seconds; }
};

std::vector<SharedStep> shared_steps(const ForecastOptions& options, const model::Model& model,
                                     const Card& card) {
  const program::Program cut =
      program::offload_experts(model.program, program::routed_experts(model.program).size());
  std::vector<SharedStep> list;
  for (const Asked& step : steps_of(options, model)) {
    const double room = share_with_room(model.program, step.depth + step.rows(), card.gpu_bytes);
    if (room < 0) {
      fail("{}: even without routed experts the model does not fit into {} of GPU memory", model.file.path(),
           short_count(static_cast<double>(card.gpu_bytes), "B"));
    }
    // How often an expert is selected that is there matters to answers alone: a prompt selects them all.
    const std::vector<double> rates =
        step.prompt > 0 || options.hit_rates.empty() ? std::vector{room} : options.hit_rates;
    for (const double rate : rates)
      list.push_back({step, rate, shared_limit(cut, step.shape(), card.peaks, rate)});
  }
  return list;
}

void print_shared(const ForecastOptions& options, const std::vector<SharedStep>& steps, const Card& card) {
  const SharedPeaks& peaks = card.peaks;
  std::string text =
      fmt::format("GPU: {} of memory at {:.1f} GB/s; CPU: {:.1f} GB/s ({}); between them {:.2f} GB/s\n\n",
                  short_count(static_cast<double>(card.gpu_bytes), "B"), 1e-9 * peaks.gpu.bytes_per_second,
                  1e-9 * peaks.cpu.bytes_per_second, options.cpu, 1e-9 * peaks.link_bytes_per_second);
  text += fmt::format(
      "| {:<18} | {:>8} | {:>8} | {:>8} | {:>9} | {:>9} | {:>12} |\n"
      "| {:-<18} | {:->7}: | {:->7}: | {:->7}: | {:->8}: | {:->8}: | {:->11}: |\n",
      "step", "hit rate", "GPU ms", "CPU ms", "copies ms", "ms a step", "tokens/s", "", "", "", "", "", "",
      "");
  for (const SharedStep& step : steps) {
    text += fmt::format("| {:<18} | {:>8.2f} | {:>8.3f} | {:>8.3f} | {:>9.3f} | {:>9.3f} | {:>12.1f} |\n",
                        step.asked.name(), step.hit_rate, 1e3 * step.limit.gpu_seconds,
                        1e3 * step.limit.cpu_seconds, 1e3 * step.limit.link_seconds, 1e3 * step.limit.seconds,
                        step.tokens_per_second());
  }
  print_text(text);
}

nlohmann::ordered_json shared_json(const SharedStep& step) {
  return {{"test", step.asked.name()},
          {"hit_rate", step.hit_rate},
          {"gpu_us", 1e6 * step.limit.gpu_seconds},
          {"cpu_us", 1e6 * step.limit.cpu_seconds},
          {"copies_us", 1e6 * step.limit.link_seconds},
          {"experts", step.limit.streamed ? "streamed" : "computed by the CPU"},
          {"limit_us", 1e6 * step.limit.seconds},
          {"tokens_per_second", step.tokens_per_second()}};
}

void forecast_shared(const ForecastOptions& options, const model::Model& model, const Card& card) {
  if (options.ops || options.records)
    throw UsageError("--ops, --records: not of a model that a GPU and a CPU share");
  const std::vector<SharedStep> steps = shared_steps(options, model, card);
  if (!options.json) return print_shared(options, steps, card);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SharedStep& step : steps) list.push_back(shared_json(step));
  print_text(nlohmann::ordered_json{{"shared", std::move(list)}}.dump(2) + "\n");
}

void forecast(const ForecastOptions& options) {
  const program::Peaks peaks = peaks_of(options);
  std::optional<ModelShapes> shapes;
  std::optional<OpenedModel> file;
  if (options.shapes.empty()) {
    file.emplace(open_model(model_path_or_bundled(options.model), options.cache));
  } else {
    shapes.emplace(options.shapes, options.mix, options.cache);
  }
  const model::Model& model = shapes ? shapes->model() : static_cast<const model::Model&>(*file);
  if (const std::optional<Card> card = shared_card(options, model, peaks))
    return forecast_shared(options, model, *card);
  const std::vector<profile::Report> reports = reports_of(options, model, peaks);
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
         "nothing between ops; distinct experts of a batch as under uniform selection. Of a card that has "
         "too "
         "little\n"
         "memory the experts without room are the CPU's, which computes them while the GPU computes others, "
         "or "
         "they\n"
         "come to the GPU; the hit rate is the share of the selected experts that the GPU has.";
}

void add_card_options(CLI::App& command, ForecastOptions& options, const std::vector<std::string>& presets) {
  add_size_option(
      command, "--gpu-memory", [&options](int64_t bytes) { options.gpu_memory = bytes; },
      "of the card's memory at most, as 10GiB (default: the preset's)");
  command.add_option("--cpu", options.cpu, "with a card that has too little memory: the CPU's preset")
      ->check(CLI::IsMember(presets))
      ->capture_default_str();
  command.add_option("--cpu-bandwidth", options.cpu_bandwidth, "the CPU's memory bandwidth instead");
  command.add_option("--cpu-flops", options.cpu_flops, "the CPU's arithmetic rate instead");
  command.add_option("--link", options.link, "between both memories, as 12GB/s (default: the preset's)");
  command
      .add_option(
          "--hit-rate", options.hit_rates,
          "share of the selected experts that the card has; a list (default: the share that has room)")
      ->delimiter(',')
      ->check(number_range(0.0, 1.0));
}

}  // namespace

void add_forecast(CLI::App& app) {
  auto options = std::make_shared<ForecastOptions>();
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
  add_card_options(*command, *options, names);
  command->add_flag("--ops", options->ops, "show the limits op by op");
  command->add_flag("--records", options->records, "show the limits of every record of a step");
  add_cache_option(*command, options->cache);
  command->add_flag("--json", options->json, "print JSON, as sluice profile --json does");
  command->callback([options] { forecast(*options); });
}

}  // namespace sluice::cli
