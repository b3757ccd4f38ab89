// gqa_attend: grouped attention from the products of a row to the values of its heads.
#pragma once

#include "program/ops/attend.h"
#include "program/ops/gqa_query.h"

namespace sluice::program {

/// Queries and the cache's row (ops/gqa_query.h), then attention (ops/attend.h), and its gate where there is
/// one: out = attention / (1 + e^-gate).
struct GqaAttend {
  static constexpr const char* kName = "gqa_attend";
  GqaQuery query;      ///< all but its result; the cache is read too
  Read sinks;          // [1, 1, heads], optional
  Read gate;           // [rows, heads, value], optional
  Write out;           // [rows, heads, value]
  float scale = 1.0f;  ///< this and the window as in Attend
  int64_t window = 0;

  template <typename F>
  void operands(F&& f) const {
    query.operands(f);
    f("sinks", sinks), f("gate", gate), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();

  int64_t kv_heads(const Program& p) const;
  /// What follows with these queries, before the gate.
  Attend attend(const Program& p, TensorId queries) const;
};

}  // namespace sluice::program
