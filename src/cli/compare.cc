// sluice compare: two backends in lockstep over one model, op by op; the first op out of tolerance is named.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/token_source.h"
#include "engine/compare.h"
#include "engine/perplexity.h"

namespace sluice::cli {
namespace {

struct CompareOptions {
  std::string model, text = "Once upon a time there was a king who had a daughter", tokens;
  std::string backend = "cpu", against = "ref";
  int64_t rows = 8;
  int threads = 0;
  bool force = false, json = false;
  quant::Type cache = quant::Type::F16;
  std::string against_cache;  ///< the same, unless it is given
};

constexpr size_t kShown = 10;

/// How near a difference is to its limit; NaN, which is over every limit, is infinite.
double share(const engine::OpDifference& d) {
  if (d.error == 0) return 0;
  return d.within() ? d.error / d.tolerance : std::numeric_limits<double>::infinity();
}

/// What the whole runs' logits show: errors of all ops together, so there is no tolerance to hold them to.
struct Whole {
  double error = 0;
  engine::Divergences kl;
};

Whole compare_whole(const model::Model& model, program::Backend& tested, const model::Model& judged_with,
                    program::Backend& judge, std::span<const int32_t> tokens) {
  const std::vector<float> expected =
      engine::run_whole(judged_with.program, judged_with.weights, judge, tokens);
  const std::vector<float> actual = engine::run_whole(model.program, model.weights, tested, tokens);
  Whole whole;
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(actual[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  whole.error = std::sqrt(error / norm);
  const auto columns = static_cast<size_t>(model.spec.vocabulary);
  for (size_t r = 0; r < tokens.size(); ++r) {
    whole.kl.add(std::span(expected).subspan(r * columns, columns),
                 std::span(actual).subspan(r * columns, columns));
  }
  return whole;
}

std::string first_text(const engine::OpDifference& d) {
  return fmt::format(
      "{}: {} differs by {:.3g}, tolerance {:.3g}, in {} against {}; worst at row {}, head {}, column {}: {} "
      "against {}",
      d.op, d.tensor, d.error, d.tolerance, d.kernel_b, d.kernel_a, d.worst[0], d.worst[1], d.worst[2], d.b,
      d.a);
}

nlohmann::ordered_json difference_json(const engine::OpDifference& d) {
  return {{"op", d.op},       {"result", d.tensor},       {"kernel", d.kernel_b}, {"against", d.kernel_a},
          {"error", d.error}, {"tolerance", d.tolerance}, {"within", d.within()}, {"worst", d.worst},
          {"value", d.b},     {"expected", d.a}};
}

void print_table(const std::vector<engine::OpDifference>& all, const CompareOptions& options, size_t tokens,
                 const Whole& whole) {
  const auto within = std::count_if(all.begin(), all.end(), [](const auto& d) { return d.within(); });
  print("{} against {} on {} tokens: {} of {} results within tolerance; the nearest to it:\n",
        options.backend, options.against, tokens, within, all.size());
  std::vector<engine::OpDifference> worst = all;
  std::stable_sort(worst.begin(), worst.end(),
                   [](const auto& x, const auto& y) { return share(x) > share(y); });
  worst.resize(std::min(worst.size(), kShown));
  print("  {:>9} {:>9}  {:<20} {:<16} {}\n", "error", "tolerance", "op", "result", "kernel");
  for (const engine::OpDifference& d : worst)
    print("  {:>9.2e} {:>9.2e}  {:<20} {:<16} {}\n", d.error, d.tolerance, d.op, d.tensor, d.kernel_b);
  print("logits of the whole: relative error {:.2e}, mean KL divergence {:.2e} nats\n", whole.error,
        whole.kl.mean().mean());
}

void compare(const CLI::App& command, const CompareOptions& options) {
  const std::string path = model_path_or_bundled(options.model);
  const model::Model model = open_unpacked_model(path, options.cache);
  std::vector<int32_t> tokens = command.count("--tokens") > 0
                                    ? read_token_file(options.tokens, model.spec.vocabulary)
                                    : tokens_of_text(model.file, options.text);
  const int64_t rows = std::min({options.rows, static_cast<int64_t>(tokens.size()), model.spec.context});
  if (rows == 0) fail("the text has no tokens");
  tokens.resize(static_cast<size_t>(rows));
  const auto tested = make_backend(options.backend, options.threads);
  const auto judge = make_backend(options.against, options.threads);
  for (const auto* backend : {&tested, &judge})
    checked_plan(model, **backend, {rows, rows, 0}, rows, options.force);

  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  std::vector<engine::OpDifference> all;
  std::optional<engine::OpDifference> first;
  engine::compare_ops(model.program, model.weights, *judge, *tested, tokens,
                      [&](const engine::OpDifference& d) {
                        if (!first && !d.within()) first = d;
                        all.push_back(d);
                        if (terminal)
                          note("\r\x1b[K{} of {} ops: {}", all.size(), model.program.ops().size(), d.op);
                      });
  if (terminal) note("\r\x1b[K");
  const quant::Type against =
      options.against_cache.empty() ? options.cache : cache_type_of(options.against_cache);
  const Whole whole = compare_whole(model, *tested, open_unpacked_model(path, against), *judge, tokens);
  if (options.json) {
    nlohmann::ordered_json ops = nlohmann::ordered_json::array();
    for (const engine::OpDifference& d : all) ops.push_back(difference_json(d));
    const nlohmann::ordered_json json = {{"backend", options.backend},
                                         {"against", options.against},
                                         {"tokens", tokens.size()},
                                         {"within", !first.has_value()},
                                         {"first", first ? difference_json(*first) : nullptr},
                                         {"logits", {{"error", whole.error}, {"kl", whole.kl.mean().mean()}}},
                                         {"ops", std::move(ops)}};
    print("{}\n", json.dump(2));
  } else {
    print_table(all, options, tokens.size(), whole);
  }
  if (first) fail("{}", first_text(*first));
}

}  // namespace

void add_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "Compare two backends op by op");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  command->add_option("--backend", options->backend, std::string("the backend to judge: ") + kBackendHelp)
      ->capture_default_str();
  command->add_option("--against", options->against, "the backend that judges")->capture_default_str();
  auto* text = command->add_option("-p,--prompt", options->text, "text to run")->capture_default_str();
  command->add_option("--tokens", options->tokens, "JSON file: an object with an array \"tokens\"")
      ->excludes(text);
  command->add_option("-n,--rows", options->rows, "only the first tokens, all in one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--force", options->force, "load even when memory is too small");
  add_cache_option(*command, options->cache);
  command->add_option(
      "--against-cache-type", options->against_cache,
      "the cache of the judge's whole run, where it is to be another one: what the type costs");
  command->add_flag("--json", options->json, "print one JSON object, every result in it");
  command->footer(
      "Every op runs on both backends with the inputs that the judge computed, so that each is held to its "
      "own\n"
      "tolerance, which follows from its types and lengths. When one is out of tolerance the exit code is 1, "
      "and\n"
      "the first such op is named. The logits of whole runs, where errors add up, are shown without a "
      "verdict.");
  command->callback([command, options] { compare(*command, *options); });
}

}  // namespace sluice::cli
