// Ranks whose layers do not fit their GPUs: each fits its own, and all hear what the others found.
#pragma once

#include <functional>
#include <vector>

#include "backend/ranks/channel.h"
#include "cli/fit.h"

namespace sluice::cli {

struct RankFits {
  Fit asked;  ///< rank 0's
  std::vector<Fitted> by_rank;

  /// Whether GPUs share layers with CPUs: some rank has to, or is to be held to a size.
  bool shared() const;
};

/// Called by all ranks. fit_own: of this rank's layers; where it throws Error, rank 0 does, with the rank's
/// name.
RankFits fit_ranks(backend::Channel& channel, const Fit& fit,
                   const std::function<Fitted(const Fit&)>& fit_own);

}  // namespace sluice::cli
