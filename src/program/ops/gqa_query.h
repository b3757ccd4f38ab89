// gqa_query: the heads of grouped attention made ready (attend, ops/attend.h, goes on): norms, rope and the
// cache.
#pragma once

#include "program/operand.h"
#include "program/ops/rope.h"

namespace sluice::program {

/// q, k and v get their biases where they have some. Each head of q and of k is normed where it has a weight,
/// and rotated; k and v enter the cache (ops/kv_append.h).
struct GqaQuery {
  static constexpr const char* kName = "gqa_query";
  Read q;        // [rows, heads, columns]
  Read k;        // [rows, kv_heads, columns]
  Read v;        // [rows, 1, kv_heads * value]
  Read q_bias;   // [1, 1, heads * columns], optional
  Read k_bias;   // [1, 1, kv_heads * columns], optional
  Read v_bias;   // [1, 1, kv_heads * value], optional
  Read q_norm;   // [1, 1, columns], optional
  Read k_norm;   // [1, 1, columns], optional
  Read factors;  // [1, 1, rotated / 2], optional
  Write cache;   // [layers, kPageRows, kv_heads * (columns + value)] a page
  Write out;     // [rows, heads, columns]; none within GqaAttend
  RopeParams rope;
  int64_t passed = 0;  ///< last columns of a head that pass through (ops/rope.h)
  float epsilon = 1e-5f;
  int32_t cache_layer = 0;

  template <typename F>
  void operands(F&& f) const {
    f("q", q), f("k", k), f("v", v), f("q_bias", q_bias), f("k_bias", k_bias), f("v_bias", v_bias);
    f("q_norm", q_norm), f("k_norm", k_norm), f("factors", factors), f("cache", cache), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  /// All but the result.
  void check_operands(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();

  struct Example {
    int64_t heads, kv_heads, columns, value, passed = 0;
    bool norms = true;
    RopePairs pairs = RopePairs::Halves;
    quant::Type cache = quant::Type::F16;
    bool biases = false;
  };
  /// All but the result, with weights and a cache of its own.
  static GqaQuery example(Builder& b, const Example& of);

  int64_t rope_columns(const Program& p) const;
};

}  // namespace sluice::program
