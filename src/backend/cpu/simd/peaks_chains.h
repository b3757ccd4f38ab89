// Chains of arithmetic that do not wait for each other, all in registers. Included by one file a tier, which
// calls it with lambdas: every tier gets a copy of its own.
#pragma once

#include <utility>

#include "backend/cpu/simd/peaks_loops.h"

namespace sluice::backend::cpu {

/// Makes a sum for every index, calls next(sum) on each in every round, and keep(sum) at the end. Indices are
/// constants, or the sums would lie in memory; make() must give numbers that the compiler cannot know to be
/// equal, or it would merge the chains.
template <typename Make, typename Next, typename Keep, size_t... I>
void run_chains(int64_t rounds, Make make, Next next, Keep keep, std::index_sequence<I...>) {
  decltype(make()) sums[] = {(static_cast<void>(I), make())...};
  for (int64_t round = 0; round < rounds; ++round) (next(sums[I]), ...);
  (keep(sums[I]), ...);
}

using Chains = std::make_index_sequence<kChains>;

}  // namespace sluice::backend::cpu
