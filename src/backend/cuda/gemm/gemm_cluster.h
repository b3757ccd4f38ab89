// Products of 9 tokens and more with plain matrices and heads, whose columns warpgroups and clusters share.
#pragma once

#include <span>

#include "backend/cuda/gemm/gemm_parts.h"

namespace sluice::backend::cuda {

/// Whether the product is of a shape for it. Its tokens lie in n-tiles then.
bool serves_cluster(const Product& product, int64_t tokens);
/// Products of the same tokens (up to three) in one launch; false: they are not alike, and nothing was
/// started. added: experts' results that come to a plain matrix's (its base and out are not asked for).
bool multiply_cluster_together(std::span<const Product> products, int64_t tokens, const Context& context,
                               const CombinePlan* added = nullptr);

/// Whether the product is of a shape for gemm/gemm_resident.cuh: the output matrix, few tokens, in n-tiles.
bool serves_resident(const Product& product, int64_t tokens);
void multiply_resident_tokens(const Product& product, const Context& context);

}  // namespace sluice::backend::cuda
