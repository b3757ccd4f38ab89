// Queries of many rows: what mla_query of several rows is made of, which mla_heads of many rows takes apart.
#pragma once

#include "backend/cuda/gemm/gemm_dense.h"
#include "program/op.h"

namespace sluice::backend::cuda {

/// Scratch: q's rows packed, and the queries. Both empty where the op's input holds the queries.
struct QueryScratch {
  Packed rows{};
  float* queries = nullptr;
};
QueryScratch take_queries(Scratch& scratch, const program::Program& p, const program::MlaQuery& op,
                          int64_t rows, int64_t heads);

/// Rows enter the cache; returns their queries [rows, heads, nope + rope], not rotated.
Rows<float> make_queries(const program::Program& p, const program::MlaQuery& op, int64_t heads,
                         Scratch& scratch, const Context& context);

/// Queries rotated and taken into latent space: out [rows, heads, rank + rope].
void make_latent_queries(const program::Program& p, const program::MlaQuery& op, const Rows<float>& queries,
                         const Rows<float>& out, Scratch& scratch, const Context& context);

/// Whether both know the op's shapes and types.
bool mla_query_gemm_serves(const program::Program& p, const program::MlaQuery& op, const Sizes& sizes);

}  // namespace sluice::backend::cuda
