// mla_values: attention from the queries of heads to their values, through the latent space or past it.
#pragma once

#include "program/ops/head_matmul.h"
#include "program/ops/mla_attend.h"

namespace sluice::program {

/// The same as its three ops: k_b takes queries into latent space, attention, v_b takes the result out. A
/// backend may give a row's result without the first two, from the keys and values of every head, which k_b
/// and v_b make of the cache's latents (DeepSeek-V2, 2024, section 2.1): many rows of one sequence have less
/// to compute that way.
struct MlaValues {
  static constexpr const char* kName = "mla_values";
  HeadMatmul queries;  // of in [rows, heads, nope] to the first rank columns of attend.q
  MlaAttend attend;    // whose q has its other columns, turned, before this op
  HeadMatmul values;   // of attend.out to [rows, heads, value]

  template <typename F>
  void operands(F&& f) const {
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
