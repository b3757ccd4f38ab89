// A model's Program for people and as JSON: sluice inspect --program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "quant/types.h"

namespace sluice::cli {

/// One line an op with operands, attributes and what a token at batch 1 and depth 0 moves and computes; the
/// totals last. `bound`: as the CPU backend runs it, with the kernel of each op. Throws Error as
/// model::Model::load does.
std::string program_text(const std::string& model_path, quant::Type cache, bool bound);

/// The same as a JSON object {"ops": [...], "total": {...}}.
nlohmann::ordered_json program_json(const std::string& model_path, quant::Type cache, bool bound);

}  // namespace sluice::cli
