#include "backend/vulkan/tables.h"

#include <bit>

#include "base/check.h"
#include "quant/iq_grids.h"
#include "quant/types.h"

namespace sluice::backend::vulkan {
namespace {

/// A block of a format decoded: what its codes mean, asked of the table of formats itself.
std::vector<float> decoded(quant::Type type, const std::vector<uint8_t>& block, int count) {
  std::vector<float> values(static_cast<size_t>(count));
  quant::type_info(type).decode(reinterpret_cast<const std::byte*>(block.data()), values.data(), count);
  return values;
}

}  // namespace

std::vector<uint32_t> format_tables() {
  std::vector<uint32_t> words;
  const auto add = [&](float value) { words.push_back(std::bit_cast<uint32_t>(value)); };
  // IQ4_NL: a scale of 1, then the codes 0 to 15 in the low halves of 16 bytes.
  std::vector<uint8_t> block = {0x00, 0x3C};
  for (uint8_t code = 0; code < 16; ++code) block.push_back(code);
  const auto nonlinear = decoded(quant::Type::IQ4_NL, block, 32);
  for (size_t i = 0; i < 16; ++i) add(nonlinear[i]);
  // MXFP4 of exponent 128: the doubled E2M1 numbers.
  block[0] = 128;
  block.erase(block.begin() + 1);
  const auto doubled = decoded(quant::Type::MXFP4, block, 32);
  for (size_t i = 0; i < 16; ++i) add(doubled[i]);
  // NVFP4: the code 2 means 1, so that a number is its scale.
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<uint8_t> of_scale(36, 0x22);
    of_scale[0] = static_cast<uint8_t>(scale);
    add(decoded(quant::Type::NVFP4, of_scale, 64)[0]);
  }
  const auto add_grid = [&](const auto& grid) { words.insert(words.end(), grid.begin(), grid.end()); };
  add_grid(quant::kIq2Xxs), add_grid(quant::kIq2Xs), add_grid(quant::kIq2S), add_grid(quant::kIq1);
  add_grid(quant::kIq3Xxs), add_grid(quant::kIq3S);
  CHECK(words.size() == 8736, "formats.glsl has it otherwise");
  return words;
}

}  // namespace sluice::backend::vulkan
