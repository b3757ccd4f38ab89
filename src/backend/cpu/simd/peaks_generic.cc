// The loops in plain C++, which the compiler makes vectors of as far as any machine of its kind has them.
#include <cstring>

#include "backend/cpu/simd/peaks_chains.h"
#include "backend/cpu/simd/peaks_read.h"

namespace sluice::backend::cpu {
namespace {

struct Vector {
  static constexpr int64_t kBytes = 64;
  uint64_t words[8] = {};
  void join(const std::byte* data) {
    uint64_t next[8];
    std::memcpy(next, data, sizeof next);
    for (int i = 0; i < 8; ++i) words[i] |= next[i];
  }
  uint64_t fold() const {
    uint64_t all = 0;
    for (const uint64_t word : words) all |= word;
    return all;
  }
};

}  // namespace

uint64_t read_generic(const std::byte* data, int64_t bytes, ReadPattern pattern) {
  return read_as<Vector>(data, bytes, pattern);
}

/// Four floats, in whatever vector registers the machine has (an extension of g++ and clang).
using Floats = float __attribute__((vector_size(16)));

void f32_generic(int64_t rounds) {
  volatile float source = 0.5f;
  const auto floats = [&] { return Floats{source, source, source, source}; };
  const Floats factor = floats();
  run_chains(
      rounds, floats, [&](Floats& sum) { sum = sum * factor + factor; },
      [&](Floats sum) { source = sum[0] + sum[1] + sum[2] + sum[3]; }, Chains());
}

}  // namespace sluice::backend::cpu
