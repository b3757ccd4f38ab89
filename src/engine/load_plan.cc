#include "engine/load_plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "engine/kv_pool.h"
#include "engine/sampler.h"

namespace sluice::engine {
namespace {

/// Positions and slots of the cache are int32.
constexpr int64_t kLongestContext = int64_t{1} << 30;

int64_t saturated_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

/// Of what a program's weights take, the share of those that another one has not.
double own_share(const program::Program& block, const program::Program& trunk) {
  const auto is_whole = [](const program::Tensor& tensor) {
    return tensor.kind == program::Kind::Weight && tensor.base == program::kNoTensor;
  };
  std::set<std::string_view> shared;
  for (const program::Tensor& tensor : trunk.tensors())
    if (is_whole(tensor)) shared.insert(tensor.name);
  double own = 0, all = 0;
  for (size_t i = 0; i < block.tensors().size(); ++i) {
    const program::Tensor& tensor = block.tensors()[i];
    if (!is_whole(tensor)) continue;
    const double bytes = block.bytes(static_cast<program::TensorId>(i), program::StepShape{});
    all += bytes;
    if (!shared.contains(tensor.name)) own += bytes;
  }
  return all > 0 ? own / all : 0;
}

}  // namespace

int64_t LoadPlan::total_bytes() const {
  return saturated_sum(saturated_sum(needs.weights_bytes, needs.cache_bytes),
                       saturated_sum(needs.scratch_bytes, logits_bytes));
}

LoadPlan plan_load(const program::Backend& backend, const program::Program& program,
                   program::CompileOptions options, int64_t model_context, int64_t wanted,
                   int64_t available_bytes, const program::Program* block) {
  const int64_t longest = std::min(model_context, kLongestContext);
  const int64_t vocabulary = program[program.output()].columns();
  const double own_weights = block != nullptr ? own_share(*block, program) : 0;
  const auto plan_for = [&](int64_t context) {
    options.cache_pages = KvPool::pages_for(context);
    program::MemoryNeeds needs = backend.memory_needs(program, options);
    if (block != nullptr) {
      program::CompileOptions own = options;
      own.aside_rows = 0;
      const program::MemoryNeeds more = backend.memory_needs(*block, own);
      const double own_bytes = own_weights * static_cast<double>(more.weights_bytes);
      needs.weights_bytes = saturated_sum(needs.weights_bytes, static_cast<int64_t>(own_bytes));
      needs.cache_bytes = saturated_sum(needs.cache_bytes, more.cache_bytes);
      needs.scratch_bytes = saturated_sum(needs.scratch_bytes, more.scratch_bytes);
    }
    return LoadPlan{context, needs, vocabulary * static_cast<int64_t>(sizeof(Candidate)), available_bytes, 0};
  };
  const auto whole = [](int64_t pages) { return pages * program::kPageRows; };
  int64_t fitting = longest;
  if (!plan_for(longest).fits()) {
    int64_t fits = 0, too_many = KvPool::pages_for(longest);  // pages
    while (fits + 1 < too_many) {
      const int64_t middle = fits + (too_many - fits) / 2;
      (plan_for(whole(middle)).fits() ? fits : too_many) = middle;
    }
    fitting = whole(fits);
  }
  const int64_t least = std::min<int64_t>(longest, program::kPageRows);
  LoadPlan plan = plan_for(wanted > 0 ? wanted : std::max(fitting, least));
  plan.fitting_context = fitting;
  return plan;
}

}  // namespace sluice::engine
