// What shaders look numbers up in (shaders/formats.glsl says where each begins).
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::backend::vulkan {

std::vector<uint32_t> format_tables();

}  // namespace sluice::backend::vulkan
