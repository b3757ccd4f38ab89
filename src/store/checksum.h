// Tells whether bytes are what was written: XXH64, at some bytes a cycle. It finds damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::store {

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace sluice::store
