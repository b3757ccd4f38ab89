// attend: attention of grouped queries (Ainslie et al. 2023) over the paged cache.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// A cache row is the keys of all kv_heads, then their values. For row r of a sequence, every head h and its
/// group g = h / (heads / kv_heads): softmax over t <= position of scale * q[r, h] . key[t, g], times
/// value[t, g].
struct Attend {
  static constexpr const char* kName = "attend";
  Read q;      // [rows, heads, key columns]
  Read cache;  // [layers, kPageRows, kv_heads * (key columns + value columns)] a page
  Write out;   // [rows, heads, value columns]
  int64_t kv_heads = 1;
  float scale = 1.0f;
  int32_t cache_layer = 0;

  template <typename F>
  void operands(F&& f) const {
    f("q", q), f("cache", cache), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
