// mla_query: what a row of latent attention needs before it attends: its cache row, and its queries in latent
// space.
#pragma once

#include "program/operand.h"
#include "program/ops/head_matmul.h"
#include "program/ops/rope.h"

namespace sluice::program {

/// The row's latent is normed, its key rotated, and both enter the cache (ops/kv_append.h). Queries are made
/// (q of the normed `in`), their rotary columns rotated, the others taken into latent space (k_b).
struct MlaQuery {
  static constexpr const char* kName = "mla_query";
  Read in;       // [rows, 1, inputs]; without q: the queries, [rows, heads, nope + rope]
  Read q_norm;   // [1, 1, inputs], optional with q
  Read q;        // [1, heads * (nope + rope), inputs], optional
  Read kv;       // [rows, 1, rank + rope]
  Read kv_norm;  // [1, 1, rank]
  Read k_b;      // [heads, rank, nope] or [heads, nope, rank]
  Read factors;  // [1, 1, rope / 2], optional
  Write cache;   // [layers, kPageRows, rank + rope] a page
  Write out;     // [rows, heads, rank + rope]
  RopeParams rope;
  Reduce k_b_reduce = Reduce::Columns;
  float epsilon = 1e-5f;
  int32_t cache_layer = 0;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("q_norm", q_norm), f("q", q), f("kv", kv), f("kv_norm", kv_norm), f("k_b", k_b);
    f("factors", factors), f("cache", cache), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  /// The same for `heads` heads, whatever `out` is.
  void check(const Program& p, int64_t heads) const;
  /// Weights and cache alone, for a low-rank query of `low` columns, or none.
  void check_weights(const Program& p, int64_t heads, int64_t low) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  /// The two ops that the expansion ends in: they take the queries to latent space.
  struct ToLatent {
    Rope turn;
    HeadMatmul queries;
  };
  /// Emits the ops before them.
  ToLatent expand_to_queries(Builder& b) const;
  static std::vector<OpCase> cases();
  /// What cases are made of; the rank is 512, and 64 columns are rotated.
  struct Example {
    int64_t heads = 20, nope = 192;
    bool with_q = true;
    Reduce reduce = Reduce::Columns;
    quant::Type q = quant::Type::Q4_0, k_b = quant::Type::Q8_0, cache = quant::Type::F16;
  };
  /// Sets all operands but the results.
  static MlaQuery example(Builder& b, const Example& of);

  int64_t rank(const Program& p) const { return p_columns(p, kv_norm.id); }
  int64_t nope(const Program& p) const;
  int64_t rope_columns(const Program& p) const { return p_columns(p, cache.id) - rank(p); }

 private:
  static int64_t p_columns(const Program& p, TensorId id);
};

}  // namespace sluice::program
