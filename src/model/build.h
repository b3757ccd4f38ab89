// The forward pass: facts and weights -> Program.
#pragma once

#include "model/spec.h"
#include "model/weights.h"
#include "program/builder.h"

namespace sluice::model {

/// cache: the number format of the cache's rows (quant/cache_row.h).
/// hidden: the program leaves the hidden states of all rows (Program::hidden_out): as the output matrix sees
/// them, behind the last norm.
void build_forward(program::Builder& b, const Spec& spec, const Weights& weights, quant::Type cache_type,
                   bool hidden = false);

/// The forward pass of the block of multi-token prediction: hidden states of the trunk, or of this block, and
/// the tokens behind them, to logits of the tokens after those and hidden states again.
void build_prediction(program::Builder& b, const Spec& spec, const PredictionWeights& weights,
                      quant::Type cache_type);

}  // namespace sluice::model
