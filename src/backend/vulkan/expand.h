// Fused ops that have no kernel here, in simpler ones in an order of our own: what does not depend on each
// other stands together, so that fewer barriers lie between.
#pragma once

#include "program/builder.h"
#include "program/op.h"

namespace sluice::backend::vulkan {

/// False: the op's own expansion will do.
bool expand_otherwise(program::Builder& builder, const program::Op& op);

}  // namespace sluice::backend::vulkan
