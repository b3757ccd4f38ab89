#include "quant/iq_grids.h"

#include "quant/iq_points.h"

namespace sluice::quant {

constexpr std::array<uint32_t, 2 * 256> kIq2Xxs = points::eight(points::kIq2XxsCodes, points::kOfTwoBits);
constexpr std::array<uint32_t, 2 * 512> kIq2Xs = points::eight(points::kIq2XsCodes, points::kOfTwoBits);
constexpr std::array<uint32_t, 2 * 1024> kIq2S = points::eight(points::kIq2SCodes, points::kOfTwoBits);
constexpr std::array<uint32_t, 2 * 2048> kIq1 = points::eight(points::kIq1Codes, points::kOfOneBit);
constexpr std::array<uint32_t, 256> kIq3Xxs = points::four(points::kIq3XxsCodes, points::kEven);
constexpr std::array<uint32_t, 512> kIq3S = points::four(points::kIq3SCodes, points::kOdd);

}  // namespace sluice::quant
