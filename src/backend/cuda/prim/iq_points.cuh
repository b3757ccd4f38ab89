// Blocks of 32 columns of the types whose codes name points of a grid (quant/iq_grids.h): words of four
// bytes, signed numbers, from the bits as host/format.h lays them out. The points lie in each kernel's own
// memory: a lane looks up others than its neighbour, so they go through L1 and not through the constant
// cache.
#pragma once

#include <array>
#include <cstdint>

#include "quant/iq_points.h"
#include "quant/types.h"

namespace sluice::backend::cuda {

constexpr bool names_points(quant::Type type) {
  using quant::Type;
  return type == Type::IQ2_XXS || type == Type::IQ2_XS || type == Type::IQ2_S || type == Type::IQ3_XXS ||
         type == Type::IQ3_S || type == Type::IQ1_S || type == Type::IQ1_M;
}

namespace points {

namespace facts = quant::points;
static __device__ const std::array<uint32_t, 512> kIq2Xxs =
    facts::eight(facts::kIq2XxsCodes, facts::kOfTwoBits);
static __device__ const std::array<uint32_t, 1024> kIq2Xs =
    facts::eight(facts::kIq2XsCodes, facts::kOfTwoBits);
static __device__ const std::array<uint32_t, 2048> kIq2S = facts::eight(facts::kIq2SCodes, facts::kOfTwoBits);
static __device__ const std::array<uint32_t, 4096> kIq1 = facts::eight(facts::kIq1Codes, facts::kOfOneBit);
static __device__ const std::array<uint32_t, 256> kIq3Xxs = facts::four(facts::kIq3XxsCodes, facts::kEven);
static __device__ const std::array<uint32_t, 512> kIq3S = facts::four(facts::kIq3SCodes, facts::kOdd);

/// The bytes of a word, negative where the four low bits of `signs` say so. None may be 0.
__device__ inline uint32_t with_signs(uint32_t word, uint32_t signs) {
  const uint32_t ones = (signs & 15u) * 0x00204081u & 0x01010101u;  // bit i to byte i
  return (word ^ ones * 255u) + ones;
}

/// Of seven signs and an eighth that makes their number even, the four of word 0 or 1 of a point.
__device__ inline uint32_t four_of_even(uint32_t seven, int word) {
  seven &= 127u;
  return (seven | static_cast<uint32_t>(__popc(seven) & 1) << 7) >> (4 * word);
}

/// Word `w` (0..7) of a block: columns 4w .. 4w + 3, w known at compile time where it is unrolled.
///   codes, high, scale: the block's pieces of the planes, as loaded
template <quant::Type T>
__device__ inline uint32_t word(const uint32_t* codes, uint32_t high, uint32_t scale, int w) {
  using quant::Type;
  const int point = w / 2, part = w % 2;  // of eight numbers
  if constexpr (T == Type::IQ2_XXS) {
    const uint32_t code = codes[0] >> (8 * point) & 255u;
    return with_signs(kIq2Xxs[2 * code + part], four_of_even(codes[1] >> (7 * point), part));
  } else if constexpr (T == Type::IQ2_XS) {
    const uint32_t both = codes[point / 2] >> (16 * (point % 2)) & 0xffffu;
    return with_signs(kIq2Xs[2 * (both & 511u) + part], four_of_even(both >> 9, part));
  } else if constexpr (T == Type::IQ2_S) {
    const uint32_t code = codes[0] >> (8 * point) & 255u | (high >> (2 * point) & 3u) << 8;
    return with_signs(kIq2S[2 * code + part], codes[1] >> (4 * w));
  } else if constexpr (T == Type::IQ3_XXS) {
    const uint32_t code = codes[w / 4] >> (8 * (w % 4)) & 255u;
    return with_signs(kIq3Xxs[code], four_of_even(high >> (7 * point), part));
  } else if constexpr (T == Type::IQ3_S) {
    const uint32_t code = codes[w / 4] >> (8 * (w % 4)) & 255u | (scale >> w & 1u) << 8;
    return with_signs(kIq3S[code], high >> (4 * w));
  } else {
    const uint32_t more = T == Type::IQ1_S ? scale >> (3 * point) & 7u : high >> (4 * point) & 7u;
    const bool down = T == Type::IQ1_S ? (scale & 0x8000u) != 0 : (high >> (4 * point) & 8u) != 0;
    // Eighths, 128 more than they are: no byte borrows from its neighbour.
    const uint32_t eighths = kIq1[2 * (codes[0] >> (8 * point) & 255u | more << 8) + part];
    return (down ? eighths - 0x01010101u : eighths + 0x01010101u) ^ 0x80808080u;
  }
}

/// The scale of columns 0..15 or 16..31, before it is multiplied with the 256 columns' own.
template <quant::Type T>
__device__ inline float scale_of(const uint32_t* codes, uint32_t high, uint32_t scale, int half) {
  using quant::Type;
  uint32_t bits;
  if constexpr (T == Type::IQ2_XXS) bits = codes[1] >> 28;
  if constexpr (T == Type::IQ3_XXS) bits = high >> 28;
  if constexpr (T == Type::IQ3_S) bits = scale >> 8;
  if constexpr (T == Type::IQ1_S) bits = scale >> 12 & 7u;
  if constexpr (T == Type::IQ2_XS || T == Type::IQ2_S || T == Type::IQ1_M) bits = scale >> (4 * half) & 15u;
  constexpr float kPart = T == Type::IQ3_S ? 1.0f : T == Type::IQ3_XXS ? 0.25f : 0.125f;
  return static_cast<float>(2 * bits + 1) * kPart;
}

}  // namespace points
}  // namespace sluice::backend::cuda
