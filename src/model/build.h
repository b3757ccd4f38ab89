// The forward pass: facts and weights -> Program.
#pragma once

#include "model/spec.h"
#include "model/weights.h"
#include "program/builder.h"

namespace sluice::model {

/// cache: the number format of the cache's rows (quant/cache_row.h).
void build_forward(program::Builder& b, const Spec& spec, const Weights& weights, quant::Type cache_type);

}  // namespace sluice::model
