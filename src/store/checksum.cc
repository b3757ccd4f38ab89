#include "store/checksum.h"

#include <bit>
#include <cstring>

namespace sluice::store {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                   kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t round(uint64_t sum, uint64_t word) { return std::rotl(sum + word * kPrime2, 31) * kPrime1; }

uint64_t merge(uint64_t sum, uint64_t lane) { return (sum ^ round(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  uint64_t sum = seed + kPrime5;
  if (bytes.size() >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; end - at >= 32; at += 32)
      for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], read<uint64_t>(at + 8 * i));
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) sum = merge(sum, lane);
  }
  sum += bytes.size();
  for (; end - at >= 8; at += 8) sum = std::rotl(sum ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    sum = std::rotl(sum ^ read<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) sum = std::rotl(sum ^ static_cast<uint64_t>(*at) * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

}  // namespace sluice::store
