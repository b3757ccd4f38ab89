// The forward pass: facts and weights -> Program.
#pragma once

#include "model/spec.h"
#include "model/weights.h"
#include "program/builder.h"

namespace sluice::model {

void build_forward(program::Builder& b, const Spec& spec, const Weights& weights);

}  // namespace sluice::model
