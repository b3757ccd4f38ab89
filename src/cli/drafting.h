// What makes drafts for a model: flags, and the model's block of multi-token prediction where it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/assemble.h"
#include "cli/cli11.h"
#include "engine/draft_pace.h"
#include "program/backend.h"

namespace sluice::cli {

struct DraftOptions {
  int64_t most = engine::DraftPace::kMostRows - 1;  ///< tokens a step
  std::string by = "auto";                          ///< lookup, mtp, none, or auto: both where they can be

  bool look_up() const { return by == "auto" || by == "lookup"; }
};

/// Adds --draft and --draft-max.
void add_draft_options(CLI::App& command, DraftOptions& options);

/// Adds --batch-invariant.
void add_invariant_option(CLI::App& command, bool& batch_invariant);

/// EngineOptions::draft_tokens: as many as are wanted and pay on the backend.
int64_t draft_tokens(const program::Backend& backend, const DraftOptions& wanted);

/// Adds the block of multi-token prediction to the model (Model::add_prediction), where the options and the
/// backend say that it drafts. Throws Error why not, if nothing else is wanted.
void prepare_drafts(OpenedModel& model, const program::Backend& backend, const DraftOptions& options,
                    quant::Type cache, bool batch_invariant = false);

/// A model's executable, and that of its block if it has one that drafts: beside the other, which outlives
/// it.
struct DraftingModel {
  std::unique_ptr<program::Executable> model, predictor;
};
DraftingModel compile_drafting(program::Backend& backend, const model::Model& model,
                               const program::CompileOptions& options, const program::Progress& progress);

}  // namespace sluice::cli
