// mla_values: attention from the queries of heads to their values, through the latent space or past it.
#pragma once

#include "program/ops/head_matmul.h"
#include "program/ops/mla_attend.h"
#include "program/ops/rope.h"

namespace sluice::program {

/// The same as its four ops: the queries' rotary columns are rotated, k_b takes the others into latent space,
/// attention, v_b takes the result out. A backend may give a row's result without latent space, from the keys
/// and values of every head, which k_b and v_b make of the cache's latents (DeepSeek-V2, 2024, section 2.1):
/// many rows of one sequence have less to compute that way.
struct MlaValues {
  static constexpr const char* kName = "mla_values";
  Rope turn;           // of [rows, heads, rope] to the last columns of attend.q
  HeadMatmul queries;  // of in [rows, heads, nope] to the first rank columns of attend.q
  MlaAttend attend;
  HeadMatmul values;  // of attend.out to [rows, heads, value]

  template <typename F>
  void operands(F&& f) const {
    f("rope_in", turn.in), f("factors", turn.factors), f("rotated", turn.out);
    f("in", queries.in), f("k_b", queries.weight), f("query", queries.out), f("q", attend.q);
    f("cache", attend.cache), f("context", attend.out), f("context_in", values.in);
    f("v_b", values.weight), f("out", values.out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
