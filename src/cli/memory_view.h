// What a model takes of memory: the check before loading, and the table of sluice inspect --memory.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/fit.h"
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

/// What one of several ranks with layers of their own would take of its device.
struct RankMemory {
  int32_t first_layer = 0, layers = 0;
  program::MemoryNeeds needs;
  Fitted fitted;  ///< of a GPU
};
/// Of each of so many, if each had a device like this and a part of this machine's memory. Throws Error with
/// the rank for whose layers there is too little.
std::vector<RankMemory> memory_of_ranks(const model::Model& model,
                                        const std::shared_ptr<program::Backend>& device, int ranks,
                                        int threads, const Fit& fit);
std::string rank_memory_text(const std::vector<RankMemory>& ranks, const program::Backend& device);
nlohmann::ordered_json rank_memory_json(const std::vector<RankMemory>& ranks);

}  // namespace sluice::cli
