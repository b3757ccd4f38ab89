#include "profile/experts.h"

#include <algorithm>
#include <variant>
#include <vector>

namespace sluice::profile {

ExpertCount count_experts(program::Executable& executable, int64_t rows) {
  const program::Program& program = executable.program();
  const program::StepShape shape{.rows = static_cast<double>(rows)};
  ExpertCount sum;
  int layers = 0;
  std::vector<float> ids;
  for (const program::Op& op : program.ops()) {
    const auto* gated = std::get_if<program::NormMoeGateUp>(&op.args);
    const auto* fused = gated != nullptr ? &gated->route : std::get_if<program::NormRoute>(&op.args);
    const auto* route = fused != nullptr ? &fused->route : std::get_if<program::Route>(&op.args);
    if (route == nullptr) continue;
    const int64_t used = program[route->ids.id].columns();
    ids.resize(static_cast<size_t>(rows * used));
    executable.peek(route->ids.id, rows, ids);
    std::sort(ids.begin(), ids.end());
    const auto distinct = static_cast<double>(std::unique(ids.begin(), ids.end()) - ids.begin());
    sum.distinct += distinct;
    sum.least = layers == 0 ? distinct : std::min(sum.least, distinct);
    const int64_t experts =
        fused != nullptr ? program[fused->router.id].shape[1] : program[route->logits.id].columns();
    sum.uniform += shape.distinct_experts(static_cast<double>(experts), static_cast<double>(used));
    ++layers;
  }
  if (layers > 0) {
    sum.distinct /= layers;
    sum.uniform /= layers;
  }
  return sum;
}

}  // namespace sluice::profile
