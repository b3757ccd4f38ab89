// sluice synth: a GGUF file with a model's exact shapes and random weights, for benchmarks without a
// download.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/synth.h"

namespace sluice::cli {
namespace {

struct SynthFlags {
  std::string model, out, mix = gguf::synth_mixes()[0].name;
  int layers = 0;
  bool prediction = false;
  uint64_t seed = 1;
  double router_skew = 0;
};

void show_progress(uint64_t done, uint64_t total) {
  const double gigabytes = 1e-9 * static_cast<double>(done), all = 1e-9 * static_cast<double>(total);
  note("\r{:6.2f} of {:.2f} GB", gigabytes, all);
  if (done == total) note("\r\x1b[K");  // the last line is the result's
}

void synth(const SynthFlags& flags) {
  gguf::SynthOptions options;
  options.model = gguf::find_synth_model(flags.model);
  options.mix = gguf::find_synth_mix(flags.mix);
  options.layers = flags.layers;
  options.seed = flags.seed;
  options.prediction = flags.prediction;
  options.router_skew = flags.router_skew;
  if (flags.prediction && !options.model->has_prediction) {
    throw UsageError(fmt::format("--mtp: {} has no block of multi-token prediction", flags.model));
  }
  if (flags.router_skew > 0 && options.model->experts == 0)
    throw UsageError(fmt::format("--router-skew: {} has no experts", flags.model));
  if (flags.layers > options.model->layers) {
    throw UsageError(fmt::format("--layers {}: {} has {}", flags.layers, flags.model, options.model->layers));
  }
  const int64_t begin = now_ns();
  const gguf::WritePlan plan = gguf::plan_synth(options);
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  gguf::write_synth(options, plan, flags.out, [terminal](uint64_t done, uint64_t total) {
    if (terminal) show_progress(done, total);
  });
  print("{}: {} tensors, {} bytes in {:.1f} s\n", flags.out, plan.tensors.size(), plan.file_bytes(),
        1e-9 * static_cast<double>(now_ns() - begin));
}

std::string mix_help() {
  std::string text = "which tensors get which type:";
  for (const gguf::SynthMix& mix : gguf::synth_mixes())
    text += fmt::format("\n{}: {}", mix.name, mix.meaning);
  return text;
}

}  // namespace

void add_synth(CLI::App& app) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command = app.add_subcommand(
      "synth", "Write a file with a model's exact shapes and random weights, for benchmarks");
  command->add_option("MODEL", flags->model, "whose shapes")
      ->required()
      ->check(CLI::IsMember(names_of(gguf::synth_models())));
  command->add_option("OUT", flags->out, "the GGUF file to write; replaced when complete")->required();
  command->add_option("--mix", flags->mix, mix_help())
      ->check(CLI::IsMember(names_of(gguf::synth_mixes())))
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "only the first layers (default: all)")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--mtp", flags->prediction, "with the model's block of multi-token prediction");
  command->add_option("--seed", flags->seed, "the same seed makes the same bytes")->capture_default_str();
  command
      ->add_option(
          "--router-skew", flags->router_skew,
          "some experts are selected more often than others, as in trained models: 0 all alike; 1 half "
          "of 64 take 82% of the selections; 1.25 the 32 selected last hold 75% of the next")
      ->check(number_range(0.0, 8.0))
      ->capture_default_str();
  command->callback([flags] { synth(*flags); });
}

}  // namespace sluice::cli
