#include "cli/drafting.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace sluice::cli {
namespace {

/// What --draft was given; llama.cpp's means a number by it.
std::string read_source(const std::string& text, DraftOptions& options) {
  constexpr std::array kSources = {"auto", "mtp", "lookup", "none"};
  if (std::ranges::find(kSources, text) != kSources.end()) {
    options.by = text;
    return "";
  }
  int64_t most = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), most);
  const bool number = error == std::errc() && end == text.data() + text.size() && most >= 0;
  if (!number || most >= engine::DraftPace::kMostRows)
    return fmt::format(
        "is \"{}\", expected auto, mtp, lookup or none (--draft-max N: so many tokens, 0 to {})", text,
        engine::DraftPace::kMostRows - 1);
  options.most = most;
  return "";
}

}  // namespace

void add_draft_options(CLI::App& command, DraftOptions& options) {
  command
      .add_option(
          "--draft-max", options.most,
          "tokens that a step may compute ahead, of those that are drafted: the same text, sooner; 0: none")
      ->check(CLI::Range(int64_t{0}, engine::DraftPace::kMostRows - 1))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--draft",
          [&options](const std::string& text) {
            if (const std::string wrong = read_source(text, options); !wrong.empty())
              throw CLI::ValidationError("--draft", wrong);
          },
          "what drafts: lookup (what followed the same words before), mtp (the model's own block of "
          "multi-token prediction), none, or auto: whichever promises more")
      ->default_str(options.by);
}

void add_invariant_option(CLI::App& command, bool& batch_invariant) {
  command.add_flag("--batch-invariant", batch_invariant,
                   "the same request gives the same text whatever is drafted and runs beside it; costs some "
                   "speed");
}

int64_t draft_tokens(const program::Backend& backend, const DraftOptions& wanted) {
  return wanted.by == "none" ? 0 : std::min(wanted.most, backend.facts().draft_rows - 1);
}

void prepare_drafts(OpenedModel& model, const program::Backend& backend, const DraftOptions& options,
                    quant::Type cache, bool batch_invariant) {
  const bool only = options.by == "mtp";
  if (!only && options.by != "auto") return;
  if (draft_tokens(backend, options) < 1) {
    if (only)
      fail("--draft mtp: there are no drafts with --backend {} and --draft-max {}", backend.name(),
           options.most);
    return;
  }
  std::optional<std::string> why_not;
  if (!backend.facts().hidden_rows) {
    why_not = fmt::format("not on the backend {} yet; cpu, cuda and ref have it", backend.name());
  } else if (batch_invariant && !backend.facts().invariant_parts) {
    why_not = fmt::format("not with --batch-invariant on the backend {}", backend.name());
  } else if (model.packed != nullptr) {
    why_not = "a packed file has no block of multi-token prediction";
  } else {
    why_not = model.add_prediction(cache);
  }
  if (why_not && only) fail("{}: --draft mtp: {}", model.file.path(), *why_not);
}

DraftingModel compile_drafting(program::Backend& backend, const model::Model& model,
                               const program::CompileOptions& options, const program::Progress& progress) {
  if (!model.prediction) return {backend.compile(model.program, model.weights, options, progress), nullptr};
  const program::Source sources[] = {{model.program, model.weights},
                                     {model.prediction->program, model.prediction->weights}};
  const auto weights = backend.load(sources, progress);
  program::CompileOptions block = options;
  block.aside_rows = 0;
  DraftingModel compiled{backend.compile(sources[0], weights, options), nullptr};
  if (compiled.model->facts().draft_rows <= 1) return compiled;  // its steps have no room for drafts
  block.beside = compiled.model.get();
  compiled.predictor = backend.compile(sources[1], weights, block);
  return compiled;
}

}  // namespace sluice::cli
