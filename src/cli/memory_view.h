// What a model takes of memory: the check before loading, and the table of sluice inspect --memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/load_plan.h"
#include "model/model.h"

namespace sluice::cli {

/// A model that would fit if others left.
class TooLittleMemory : public Error {
 public:
  using Error::Error;
};

/// The program of the model's block of multi-token prediction, if that drafts (Model::add_prediction); or
/// null.
const program::Program* block_of(const model::Model& model);

/// The plan for a context of `wanted` tokens (0: the largest that fits). Throws TooLittleMemory when
/// it needs more memory than there is, unless `force`; says on standard error, in one line, when it chose
/// less than the model's context.
engine::LoadPlan checked_plan(const model::Model& model, const program::Backend& backend,
                              const program::CompileOptions& options, int64_t wanted, bool force);

/// The message for a plan that does not fit: what is needed, item by item, what there is, and what would fit.
std::string too_little_memory(const engine::LoadPlan& plan);

struct MemoryView {
  std::string backend;
  int64_t model_context = 0;
  int64_t rows = 0;           ///< of a step at most
  int64_t process_bytes = 0;  ///< what this program has of its own by now
  engine::LoadPlan plan;
  std::vector<std::string> caches = {};  ///< what each of them keeps, where there are several
};

/// The plan of run and chat for a context of `wanted` tokens (0: the largest that fits).
MemoryView memory_view(const model::Model& model, const program::Backend& backend, int64_t wanted);
std::string memory_text(const MemoryView& view);
nlohmann::ordered_json memory_json(const MemoryView& view);

}  // namespace sluice::cli
