// mla_heads: latent attention head by head, from a row's low-rank query and latent to the values of its
// heads.
#pragma once

#include "program/ops/mla_query.h"

namespace sluice::program {

/// Queries and the cache's row (ops/mla_query.h), attention (ops/mla_attend.h), and v_b takes the result out
/// of latent space.
struct MlaHeads {
  static constexpr const char* kName = "mla_heads";
  MlaQuery query;  ///< all but its result; the cache is read too
  Read v_b;        // [heads, value, rank]
  Write out;       // [rows, heads, value]
  float scale = 1.0f;

  template <typename F>
  void operands(F&& f) const {
    query.operands(f);
    f("v_b", v_b), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  /// Of what it reads weights and cache alone (MlaQuery::check_weights).
  void check_weights(const Program& p, int64_t low) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  /// Another expansion: into what makes the queries, and mla_values. What that has in latent space is of so
  /// many rows at a time.
  void expand_to_values(Builder& b, int64_t latent_rows) const;
  static std::vector<OpCase> cases();

 private:
  void check_values(const Program& p) const;
};

}  // namespace sluice::program
