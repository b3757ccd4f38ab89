// A model's Program for people and as JSON: sluice inspect --program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model.h"
#include "program/backend.h"

namespace sluice::cli {

/// How a model's Program is shown.
struct ProgramView {
  /// As this backend runs it (Backend::bind), with the kernel of each op, how weights are packed, and what it
  /// takes of memory; null: as the model makes it.
  const program::Backend* backend = nullptr;
  std::vector<double> places;  ///< cut into these shares (program/places.h); empty: in one
};

/// One line an op with operands, attributes and what a token at batch 1 and depth 0 moves and computes; the
/// totals last.
std::string program_text(const model::Model& model, const ProgramView& shown);

/// The same as a JSON object {"ops": [...], "total": {...}}; with a backend "weights" and "memory", too.
nlohmann::ordered_json program_json(const model::Model& model, const ProgramView& shown);

}  // namespace sluice::cli
