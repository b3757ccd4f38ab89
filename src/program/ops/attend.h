// attend: attention of grouped queries (Ainslie et al. 2023) over the paged cache, of all positions or of a
// window of the last ones.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// A cache row is the keys of all kv_heads, then their values. For row r of a sequence, every head h and its
/// group g = h / (heads / kv_heads): softmax over t <= position of scale * q[r, h] . key[t, g], times
/// value[t, g]. With a window, t is among the last `window` positions, the row's own included. A head's sink
/// is one more score of its softmax, which no value goes with: what it takes, the values lack.
struct Attend {
  static constexpr const char* kName = "attend";
  Read q;      // [rows, heads, key columns]
  Read cache;  // [layers, kPageRows, kv_heads * (key columns + value columns)] a page
  Read sinks;  // [1, 1, heads], optional
  Write out;   // [rows, heads, value columns]
  int64_t kv_heads = 1;
  float scale = 1.0f;
  int32_t cache_layer = 0;
  int64_t window = 0;  ///< 0: all positions

  template <typename F>
  void operands(F&& f) const {
    f("q", q), f("cache", cache), f("sinks", sinks), f("out", out);
  }
  /// The first position that a row at `position` attends to.
  int64_t first(int64_t position) const {
    return window > 0 && position >= window ? position + 1 - window : 0;
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
