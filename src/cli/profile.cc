// sluice profile: where the time of a token goes, op by op.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/measured_steps.h"
#include "profile/profile.h"
#include "profile/timeline.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string model, backend = "cpu";
  int64_t tokens = 32, depth = 0;
  int threads = 0;
  bool json = false;
};

/// Nanoseconds that every op added to `tokens` decode steps after `depth` tokens of context; the first step
/// warms up.
std::vector<std::vector<int64_t>> measure(program::Executable& executable, const Options& options) {
  MeasuredSteps steps(executable, 1, 1, options.depth + options.tokens + 1, 1);
  steps.fill(options.depth, 1);
  program::StepTimes clock;
  steps.time_into(&clock);
  std::vector<std::vector<int64_t>> times;
  for (int64_t position = options.depth; position <= options.depth + options.tokens; ++position) {
    steps.decode_step(position, 1);
    if (position > options.depth) {
      times.push_back(profile::take_apart(clock, executable.program().ops().size()).op_ns);
    }
  }
  return times;
}

void profile(const Options& options) {
  const model::Model model = model::Model::load(model_path_or_bundled(options.model));
  const int64_t last = options.depth + options.tokens + 1;
  if (last > model.spec.context) {
    fail("{} tokens at depth {}: the model's context is {}", options.tokens, options.depth,
         model.spec.context);
  }
  const auto pages = static_cast<int32_t>(engine::KvPool::pages_for(last));
  const auto backend = make_backend(options.backend, options.threads);
  const auto executable = backend->compile(model.program, model.weights, {1, 1, pages});
  const auto times = measure(*executable, options);
  const double context = static_cast<double>(options.depth) + static_cast<double>(options.tokens) / 2 + 1.5;
  const auto rows =
      profile::summarize(executable->program(), times, {.context = context, .cache_rows = context});
  if (!options.json) {
    fmt::print("{} decode steps at depth {}, backend {}; medians\n{}", options.tokens, options.depth,
               backend->name(), profile::table_text(rows));
    return;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const profile::Row& row : rows) {
    json.push_back({{"op", row.op},
                    {"calls", row.calls},
                    {"us", row.us},
                    {"bytes_read", row.cost.bytes_read},
                    {"bytes_written", row.cost.bytes_written},
                    {"flops", row.cost.flops}});
  }
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

void add_profile(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("profile", "Show where the time of a token goes, op by op");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("-n,--tokens", options->tokens, "decode steps to time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-d,--depth", options->depth, "tokens of context before them")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, "cpu or ref")->capture_default_str();
  command->add_flag("--json", options->json, "print a JSON array");
  command->callback([options] { profile(*options); });
}

}  // namespace sluice::cli
