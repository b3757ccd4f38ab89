// A model's Program for people and as JSON: sluice inspect --program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"
#include "program/backend.h"

namespace sluice::cli {

/// One line an op with operands, attributes and what a token at batch 1 and depth 0 moves and computes; the
/// totals last. With a backend: as it runs the list (Backend::bind), with the kernel of each op, how weights
/// are packed, and what it takes of memory. Throws Error as model::Model::load does.
std::string program_text(const model::Model& model, const program::Backend* backend);

/// The same as a JSON object {"ops": [...], "total": {...}}; with a backend "weights" and "memory", too.
nlohmann::ordered_json program_json(const model::Model& model, const program::Backend* backend);

}  // namespace sluice::cli
