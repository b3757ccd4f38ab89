// kv_append: a step's rows enter the cache.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// cache[layer][slots[r]] = latent[r] followed by rope_key[r], in the cache's own number format. What attends
/// decides what a row means: for attend (ops/attend.h) it is the keys of all heads, then their values.
struct KvAppend {
  static constexpr const char* kName = "kv_append";
  Read latent;    // [rows, 1, rank]
  Read rope_key;  // [rows, 1, rope]
  Write cache;    // [layers, kPageRows, rank + rope] a page
  int32_t cache_layer = 0;

  template <typename F>
  void operands(F&& f) const {
    f("latent", latent), f("rope_key", rope_key), f("cache", cache);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
