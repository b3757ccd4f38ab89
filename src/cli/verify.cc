// sluice verify: whether a model computes here what it should, in one file to attach to a report. Its layers'
// ops against the reference, how well it predicts a text, and how fast it is.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/hub_model.h"
#include "cli/loading.h"
#include "cli/measured_steps.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/token_source.h"
#include "cli/version.h"
#include "engine/compare.h"
#include "engine/judged_text.h"
#include "engine/kv_pool.h"
#include "engine/perplexity.h"
#include "engine/scorer.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyOptions {
  std::string model, output = "sluice-verify.json", backend = "auto";
  int threads = 0;
  bool force = false;
  GpuShare gpu;
};

/// The text that every report's perplexity is of: it must stay as it is, so that reports can be compared.
constexpr const char* kText =
    R"(A miller lived by a river with his daughter and an old grey donkey. In spring the water was high, the wheel turned all day, and there was bread in every house of the valley. But one summer no rain fell. The river became a brook, the brook became a row of puddles, and the wheel stood still.

"We must sell the donkey," said the miller, "or we shall have nothing to eat."

"Let me go up the valley first," said the daughter, "and see where the water has gone." She took a piece of bread and a lantern, and the donkey went with her, because it did not like to be alone.

They walked for two days. On the third morning they came to a place where the valley was narrow, and there a fallen tree lay across the bed of the river. Behind it were branches, leaves and stones, and behind these was a lake, as still as a mirror. On the trunk sat a beaver, who looked as proud as a king.

"Is this your lake?" asked the girl. "It is," said the beaver. "I built the wall myself, and I have told nobody." "It is a fine wall," said the girl, "but below it a hundred people have no bread." The beaver was silent for a while. "Nobody has ever called it fine," he said. "How much water does a wheel need?"

So they opened a small gate in the wall, as wide as the donkey was long, and they agreed that it should be open by day and shut by night. The water ran down the valley, and when the girl came home the wheel was turning. From that year on the miller sent a loaf of bread to the lake on the first day of every month, and the donkey carried it.
)";

/// Ops are compared over the first tokens of the text: the reference takes its time.
constexpr size_t kComparedTokens = 8;
/// Files of up to so many bytes are compared as a whole, of larger ones the first layers: the dense ones, of
/// whatever the experts follow, and two behind them.
constexpr int64_t kWholeBytes = int64_t{1} << 30;
constexpr int64_t kWindow = 512, kPrompt = 128, kAnswer = 32;
/// A text that the model writes after the first tokens of ours, where the whole file is compared.
constexpr int64_t kBeginning = 32, kWritten = 200;

Json about_model(const model::Model& model) {
  std::map<std::string, int64_t> types;
  for (const gguf::Tensor& tensor : model.file.tensors()) types[quant::type_info(tensor.type).name] += 1;
  return {{"file", std::filesystem::path(model.file.path()).filename().string()},
          {"name", model.spec.name},
          {"architecture", model.spec.architecture},
          {"layers", model.spec.layers},
          {"experts", model.spec.experts},
          {"vocabulary", model.spec.vocabulary},
          {"context", model.spec.context},
          {"bytes", model.file.size_bytes()},
          {"tensors", types}};
}

Json compared(const model::Model& model, program::Backend& backend, std::span<const int32_t> tokens) {
  const auto judge = make_backend("ref", 0);
  const int64_t layers = model.file.size_bytes() <= kWholeBytes
                             ? model.spec.layers
                             : std::min(model.spec.layers, model.spec.dense_layers + 2);
  int64_t ops = 0, within = 0;
  Json outside = Json::array();
  double nearest = 0;
  engine::compare_ops(
      model.program, model.weights, *judge, backend, tokens,
      [&](const engine::OpDifference& d) {
        ++ops;
        within += d.within() ? 1 : 0;
        if (d.error > 0) nearest = std::max(nearest, d.error / d.tolerance);
        if (!d.within())
          outside.push_back(
              {{"op", d.op}, {"kernel", d.kernel_b}, {"error", d.error}, {"tolerance", d.tolerance}});
      },
      layers == model.spec.layers ? std::numeric_limits<int64_t>::max() : layers);
  return {{"ok", within == ops},
          {"tokens", tokens.size()},
          {"layers", layers},
          {"results", ops},
          {"within_tolerance", within},
          {"largest_share_of_tolerance", nearest},
          {"outside", std::move(outside)}};
}

/// Windows of the text, each a sequence of its own. A model that predicts worse than one that knows nothing
/// is broken.
Json predicted(program::Executable& executable, const model::Model& model, std::span<const int32_t> tokens,
               int64_t window, int64_t rows) {
  engine::Scorer scorer(executable, window, rows);
  engine::Mean nats;
  for (const engine::Window& w : engine::windows_of(static_cast<int64_t>(tokens.size()), window, window)) {
    const auto part = tokens.subspan(static_cast<size_t>(w.begin), static_cast<size_t>(w.end - w.begin));
    if (part.size() < 2) continue;
    scorer.run(part.first(part.size() - 1), 0, [&](int64_t position, std::span<const float> logits) {
      const auto next = static_cast<size_t>(part[static_cast<size_t>(position) + 1]);
      nats.add(engine::log_sum_exp(logits) - static_cast<double>(logits[next]));
    });
  }
  const bool ok = nats.mean() < std::log(static_cast<double>(model.spec.vocabulary));  // false for NaN
  return {{"ok", ok},
          {"tokens", nats.count()},
          {"window", window},
          {"nats", nats.mean()},
          {"nats_standard_error", nats.standard_error()},
          {"perplexity", std::exp(nats.mean())}};
}

/// What the backend writes at temperature 0, token by token as the reference sees it. Told and not judged:
/// how far results may lie apart is what the ops are held to.
Json written(program::Executable& executable, const model::Model& model, std::span<const int32_t> tokens,
             int64_t window, int64_t rows) {
  const auto prompt = tokens.first(
      static_cast<size_t>(std::min({kBeginning, window / 2, static_cast<int64_t>(tokens.size())})));
  const int64_t count = std::min(kWritten, window - static_cast<int64_t>(prompt.size()));
  const auto reference = make_backend("ref", 0);
  const auto judge = reference->compile(model.program, model.weights,
                                        {.max_rows = rows,
                                         .max_outputs = rows,
                                         .cache_pages = MeasuredSteps::pages(1, window),
                                         .state_slots = MeasuredSteps::state_slots(1)});
  const engine::JudgedText text = engine::judge_text(executable, *judge, rows, prompt, count);
  return {{"tokens", text.tokens},
          {"first_of_reference", text.first},
          {"same_until", text.first_other},
          {"farthest_behind", text.farthest},
          {"logit_error", text.logit_error}};
}

/// The better of two, in tokens a second.
Json speeds(program::Executable& executable, int64_t rows, int64_t context) {
  MeasuredSteps steps(executable, rows, 1, context, 1);
  const int64_t prompt = std::min(kPrompt, context / 2), answer = std::min(kAnswer, context / 2);
  double prompts = 0, answers = 0;
  for (int i = 0; i < 2; ++i) {
    prompts =
        std::max(prompts, 1e9 * static_cast<double>(prompt) / static_cast<double>(steps.prompt(0, prompt)));
    answers = std::max(answers, 1e9 * static_cast<double>(answer) /
                                    static_cast<double>(steps.decode_steps(prompt, 1, answer)));
  }
  return {{"prompt_tokens", prompt},
          {"prompt_tokens_per_second", prompts},
          {"answer_tokens", answer},
          {"answer_tokens_per_second", answers}};
}

void verify(const VerifyOptions& options) {
  const int64_t began = now_ns();
  expect_writable(options.output);
  const model::Model model = open_unpacked_model(model_path_or_bundled(options.model));
  const std::vector<int32_t> tokens = tokens_of_text(model.file, kText);
  if (tokens.size() < 2)
    fail("{}: the text has {} tokens in its vocabulary", model.file.path(), tokens.size());
  const int64_t window = std::min(kWindow, model.spec.context), rows = std::min(kPrompt, window);
  const auto backend = make_backend(options.backend, options.threads, {}, model, {options.gpu, window, rows});
  checked_plan(model, *backend, {rows, rows, 0}, window, options.force);
  const auto say = [](const char* what) { note("sluice: verify: {}\n", what); };

  say("comparing ops with the reference");
  const Json ops =
      compared(model, *backend, std::span(tokens).first(std::min(tokens.size(), kComparedTokens)));
  const int64_t loading = now_ns();
  const auto executable = backend->compile(model.program, model.weights,
                                           {.max_rows = rows,
                                            .max_outputs = rows,
                                            .cache_pages = MeasuredSteps::pages(1, window),
                                            .state_slots = MeasuredSteps::state_slots(1)},
                                           loading_bar());
  const int64_t loaded = now_ns();
  say("predicting a text");
  const Json text = predicted(*executable, model, tokens, window, rows);
  const bool whole = ops["layers"].get<int64_t>() == model.spec.layers;
  if (whole) say("holding what it writes against the reference");
  const Json answer = whole ? written(*executable, model, tokens, window, rows) : Json(nullptr);
  say("measuring speeds");
  const Json speed = speeds(*executable, rows, window);

  const bool ok = ops["ok"].get<bool>() && text["ok"].get<bool>();
  const Json report = {{"ok", ok},
                       {"sluice", version()},
                       {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
                       {"processor", cpu_name()},
                       {"threads", options.threads > 0 ? options.threads : usable_threads()},
                       {"backend", backend->name()},
                       {"device", backend->device()},
                       {"model", about_model(model)},
                       {"ops", ops},
                       {"text", text},
                       {"answer", answer},
                       {"speed", speed},
                       {"load_seconds", 1e-9 * static_cast<double>(loaded - loading)},
                       {"peak_memory_bytes", peak_memory_bytes()},
                       {"seconds", 1e-9 * static_cast<double>(now_ns() - began)}};
  const std::string json = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_file(options.output, std::as_bytes(std::span(json)));
  print("{} of {} results within tolerance of the reference ({} of {} layers)\n",
        ops["within_tolerance"].get<int64_t>(), ops["results"].get<int64_t>(), ops["layers"].get<int64_t>(),
        model.spec.layers);
  print("perplexity {:.3f} over {} tokens\n", text["perplexity"].get<double>(),
        text["tokens"].get<int64_t>());
  if (whole)
    print(
        "{} of {} tokens that it writes are the reference's first; the farthest is {:.3f} behind it, where "
        "logits are off by {:.3f}\n",
        answer["first_of_reference"].get<int64_t>(), answer["tokens"].get<int64_t>(),
        answer["farthest_behind"].get<double>(), answer["logit_error"].get<double>());
  print("{:.1f} tokens/s of a prompt, {:.1f} tokens/s of an answer\n",
        speed["prompt_tokens_per_second"].get<double>(), speed["answer_tokens_per_second"].get<double>());
  print("{}: written to {}\n", ok ? "ok" : "not ok", options.output);
  if (!ok) throw CLI::RuntimeError(1);
}

}  // namespace

void add_verify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Check that a model computes here what it should, and write a report");
  add_model_option(*command, options->model);
  command->add_option("-o,--output", options->output, "the report, a JSON file")->capture_default_str();
  add_gpu_memory_option(*command, options->gpu);
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--force", options->force, "load even when memory is too small");
  command->footer(
      "Compares ops with the reference (all of a file up to 1 GiB, the first layers of a larger one), "
      "measures\n"
      "how well a text that is always the same is predicted, and tokens a second. Of a file up to 1 GiB the\n"
      "reference also reads 200 tokens that the model writes at temperature 0: those that it would not have\n"
      "written are near ties, which the backend's rounding decides. The report names the file, the "
      "processor\n"
      "and the device, and no folder or user. Exit code 1: a result is out of its tolerance, or the text is\n"
      "predicted no better than by chance.");
  command->callback([options] { verify(*options); });
}

}  // namespace sluice::cli
