// mla_attend: attention in latent space over the paged cache (DeepSeek-V2, 2024, section 2.1, absorbed form).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// For row r of a sequence and every head h: softmax over t <= position of scale * q[r, h] . cache[t], times
/// the first rank columns of the same cache rows. There is no V cache: the values are the latents themselves.
struct MlaAttend {
  static constexpr const char* kName = "mla_attend";
  Read q;      // [rows, heads, rank + rope]
  Read cache;  // [layers, kPageRows, rank + rope] a page
  Write out;   // [rows, heads, rank]
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
