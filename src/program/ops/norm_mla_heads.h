// norm_mla_heads: the first half of latent attention: norm, low-rank products and everything up to the values
// of the heads, so that nothing lies between a row and what its heads make of it.
#pragma once

#include "program/operand.h"
#include "program/ops/mla_heads.h"
#include "program/ops/norm_matmul.h"

namespace sluice::program {

/// norm_matmul, whose results are the low-rank query (or the queries) and the cache's row before its norm,
/// and mla_heads of them
struct NormMlaHeads {
  static constexpr const char* kName = "norm_mla_heads";
  NormMatmul products;  ///< a: of the low-rank query, or of the queries; b: of the cache's row; no results
  MlaHeads heads;       ///< all but query.in and query.kv

  template <typename F>
  void operands(F&& f) const {
    products.operands(f);
    heads.operands(f);
  }
  std::string attributes() const { return heads.attributes(); }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();

  /// Columns of a head's queries: rotated ones too.
  int64_t query_columns(const Program& p) const;
};

}  // namespace sluice::program
