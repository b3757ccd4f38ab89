// A model that is larger than a device's memory: routed experts of some layers at another place, everything
// else at the first (places.h says how places run).
#pragma once

#include <vector>

#include "program/program.h"

namespace sluice::program {

/// What offload_experts may move, in the order of the layers: one of each mixture of experts.
struct RoutedExperts {
  int32_t layer;
  int64_t bytes;  ///< of their weights
};
std::vector<RoutedExperts> routed_experts(const Program& program);

/// The same computation with the routed experts of the last `count` mixtures at place 1: the first place
/// norms and routes, the second multiplies the selected experts while the first multiplies the shared ones,
/// and their sum comes back. Tensors of `program` keep their ids.
Program offload_experts(const Program& program, size_t count);

}  // namespace sluice::program
