// sluice tune: the choices that kernels leave open, measured at a model's shapes; winners are kept for this
// machine.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/hardware.h"
#include "cli/number_list.h"
#include "cli/op_shapes.h"
#include "cli/output.h"
#include "cli/tuning_file.h"
#include "gguf/synth.h"
#include "profile/tuner.h"

namespace sluice::cli {
namespace {

struct TuneOptions {
  std::string file, shapes, mix = gguf::synth_mixes()[0].name, backend = "cpu", rows = "1", rotate = "0.4GB";
  int threads = 0;
  double seconds = 0.3;
  bool dry = false;
};

void print_choices(const std::vector<profile::Choice>& choices) {
  size_t width = 6;
  for (const profile::Choice& choice : choices) width = std::max(width, choice.variants.key.size());
  std::string text = fmt::format(
      "| {:<{}} | {:>5} | {:>9} | {:>11} | {:>9} | {:>11} | {:>7} |\n| {:-<{}} | {:->4}: | {:->8}: | "
      "{:->10}: | "
      "{:->8}: | {:->10}: | {:->6}: |\n",
      "choice", width, "ops", "built-in", "us a step", "best", "us a step", "gain", "", width, "", "", "", "",
      "", "");
  for (const profile::Choice& choice : choices) {
    text += fmt::format("| {:<{}} | {:>5} | {:>9} | {:>11.1f} | {:>9} | {:>11.1f} | {:>7} |\n",
                        choice.variants.key, width, choice.ops, choice.variants.builtin,
                        choice.us_of(choice.variants.builtin), choice.best, choice.us_of(choice.best),
                        fmt::format("{:.1f} %", 100 * choice.gain()));
    for (size_t i = 0; i < choice.us.size(); ++i) {
      text += fmt::format("|   {:<{}} | {:>5} | {:>9} | {:>11} | {:>9} | {:>11.1f} | {:>7} |\n", "",
                          width - 2, "", "", "", choice.variants.values[i], choice.us[i],
                          fmt::format("± {:.1f} %", 100 * choice.off_us[i] / choice.us[i]));
    }
  }
  print_text(text);
}

void check_memory(double rotate_bytes) {
  constexpr double kValues = 8;  // more than any choice has, that so many copies may be there at once
  const int64_t available = available_memory_bytes();
  if (kValues * rotate_bytes <= static_cast<double>(available)) return;
  fail("needs up to {:.1f} GB of memory, {:.1f} GB are available: a smaller --rotate",
       1e-9 * kValues * rotate_bytes, 1e-9 * static_cast<double>(available));
}

void tune(const TuneOptions& options) {
  const int threads = threads_for(options.threads);
  const auto make = [&](const program::Tuning& tuning) {
    return make_backend(options.backend, threads, tuning);
  };
  const auto backend = make({});
  const auto rows_list = number_list("--rows", options.rows, 1);
  OpShapes shapes(*backend, *std::ranges::min_element(rows_list));
  if (options.shapes.empty()) {
    shapes.add_file(model_path_or_bundled(options.file));
  } else {
    shapes.add_synth(options.shapes, options.mix);
  }
  const double rotate_bytes = parse_rate("--rotate", options.rotate);
  check_memory(rotate_bytes);
  std::vector<profile::TuneCase> cases;
  for (const OpShape& shape : shapes.list()) {
    for (const int64_t rows : rows_list) {
      cases.push_back({shape.program, shape.record, static_cast<double>(shape.calls), rows,
                       [&shapes, &shape]() -> const program::WeightBytes& { return shapes.weights(shape); }});
    }
  }
  const std::string device = backend->device();
  const std::vector<profile::Choice> choices =
      profile::tune(make, cases, {.rotate_bytes = rotate_bytes, .seconds = options.seconds},
                    [](const std::string& what) { note("sluice: {}\n", what); });
  if (choices.empty()) {
    print_text(
        fmt::format("the kernels of {} leave nothing open at these shapes; nothing is kept\n", device));
    return;
  }
  print_choices(choices);
  if (options.dry) return;
  write_tuning(tuning_path(), device, choices);
  print_text(fmt::format("kept in {} for {}\n", tuning_path(), device));
}

}  // namespace

void add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = app.add_subcommand(
      "tune", "Measure the choices that kernels leave open at a model's shapes, and keep the winners");
  command->footer(
      "Winners are kept in $SLUICE_TUNING, or sluice/tuning.json in $XDG_CACHE_HOME or ~/.cache, by "
      "processor,\n"
      "tier, threads and version of the kernels; every command reads them. They change how fast results are\n"
      "computed, never the results. A value must be faster than the built-in one by 2 %, and by more than\n"
      "chance. Remove the file to go back.\n"
      "The backend cpu leaves open how far ahead its kernels ask for weights. Those of cuda leave nothing "
      "open:\n"
      "how they split a sum follows from the op's shape and the device, so that no result depends on a "
      "file;\n"
      "how many blocks, stages and registers they take was measured and is compiled in.");
  CLI::Option* file =
      command->add_option("-m,--model", options->file, "GGUF file; without it the bundled model");
  command->add_option("--shapes", options->shapes, "instead of a file: a model of sluice synth")
      ->check(CLI::IsMember(names_of(gguf::synth_models())))
      ->excludes(file);
  command
      ->add_option("--mix", options->mix, "with --shapes: which tensors get which type, as in sluice synth")
      ->check(CLI::IsMember(names_of(gguf::synth_mixes())))
      ->capture_default_str();
  command->add_option("-r,--rows", options->rows, "rows of a step; lists and ranges as in sluice bench")
      ->capture_default_str();
  command->add_option("--rotate", options->rotate, "bytes of weights that each value's runs rotate over")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "to measure each value at each shape for, at least")
      ->check(number_range(0.001, 60.0))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_flag("--dry-run", options->dry, "measure, and keep nothing");
  command->callback([options] { tune(*options); });
}

}  // namespace sluice::cli
