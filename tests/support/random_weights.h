// Weights of any type whose numbers are random. Compiled with -O3 even where tests are not
// (tests/CMakeLists.txt): drawing them was most of what tests of ops take.
#pragma once

#include <cstddef>
#include <random>
#include <span>

#include "quant/types.h"

namespace sluice::test {

/// Fills whole blocks of any type with random bytes, drawn again until the numbers are finite and of sane
/// size.
void random_weights(const quant::TypeInfo& type, std::span<std::byte> out, std::mt19937_64& random);

}  // namespace sluice::test
