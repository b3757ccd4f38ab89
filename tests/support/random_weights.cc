#include "support/random_weights.h"

#include <algorithm>
#include <cmath>

#include "base/target_clones.h"

namespace sluice::test {

// All is inlined: a linker takes any file's copy of an inline function, and those of other tests are slow.
// With wider vectors the generator takes a quarter of the time.
[[gnu::flatten]] SLUICE_CLONES void random_weights(const quant::TypeInfo& type, std::span<std::byte> out,
                                                   std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  float values[256];
  for (size_t at = 0; at < out.size(); at += static_cast<size_t>(type.bytes)) {
    std::byte* block = out.data() + at;
    if (type.block == 1) {  // a float type: any bytes would do, but few are of sane size
      const float value = normal(random);
      type.encode(&value, block, 1);
      continue;
    }
    for (float largest = 0; !(largest > 1e-3f && largest < 8.0f);) {
      for (int i = 0; i < type.bytes; ++i) block[i] = static_cast<std::byte>(random());
      type.decode(block, values, type.block);
      largest = 0;
      for (int i = 0; i < type.block; ++i) {
        // NaN must not pass: it compares false with everything, so it is made too large.
        largest = std::isfinite(values[i]) ? std::max(largest, std::abs(values[i])) : 1e9f;
        if (largest > 8.0f) break;
      }
    }
  }
}

}  // namespace sluice::test
