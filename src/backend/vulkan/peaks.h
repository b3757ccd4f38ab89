// What a device's memory gives at best.
#pragma once

#include "backend/vulkan/context.h"

namespace sluice::backend::vulkan {

/// Bytes a second that reading memory reaches now, by the device's clock; 0: it has none, or no room.
double measure_read_bandwidth(Context& context);

}  // namespace sluice::backend::vulkan
