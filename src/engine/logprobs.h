// Log-probabilities of one row of logits: of the token that was drawn, and of the likeliest ones. Of the
// model's own distribution: nothing a sampler does is in them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace sluice::engine {

/// `out` becomes the token's own, then those of the `count` likeliest, ties to the lower id. NaN counts as
/// minus infinity; the likelihood of a row of nothing else is minus infinity throughout.
void log_probabilities(std::span<const float> logits, int32_t token, int32_t count,
                       std::vector<TokenLogprob>& out);

}  // namespace sluice::engine
