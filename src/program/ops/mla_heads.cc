#include "program/ops/mla_heads.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

std::string MlaHeads::attributes() const { return fmt::format("scale {:g} {}", scale, query.attributes()); }

void MlaHeads::check(const Program& p) const {
  const int64_t heads = p[out.id].heads();
  query.check(p, heads);
  check_values(p);
}

void MlaHeads::check_weights(const Program& p, int64_t low) const {
  query.check_weights(p, p[out.id].heads(), low);
  check_values(p);
}

void MlaHeads::check_values(const Program& p) const {
  const int64_t heads = p[out.id].heads();
  if (query.out.id != kNoTensor) fail("query: it stays inside");
  expect_weight(p, "v_b", v_b.id);
  expect_shape(p, "v_b", v_b.id, {heads, p[out.id].columns(), query.rank(p)});
  expect_shape(p, "out", out.id, {kStepRows, heads, p[out.id].columns()});
}

/// In latent space, or with the keys and values of every head expanded once for all cache rows, whichever is
/// less.
Cost MlaHeads::cost(const Program& p, const StepShape& shape) const {
  const auto width = static_cast<double>(p[query.cache.id].columns());
  const auto rank = static_cast<double>(query.rank(p)), heads = static_cast<double>(p[out.id].heads());
  const double attended = shape.rows * shape.context * heads;
  const double of_k = p.elements(query.k_b.id, shape), of_v = p.elements(v_b.id, shape);
  const double latent = attended * (width + rank) + shape.rows * (of_k + of_v);
  const double columns = static_cast<double>(query.nope(p) + query.rope_columns(p) + p[out.id].columns());
  const double expanded = attended * columns + shape.cache_rows * (of_k + of_v);
  Cost cost = query.cost(p, shape);
  cost += {p.bytes(v_b.id, shape) + p.bytes(query.cache.id, shape.cache_rows * width), p.bytes(out.id, shape),
           2 * (std::min(latent, expanded) - shape.rows * of_k)};
  return cost;
}

void MlaHeads::expand(Builder& b) const {
  const int64_t heads = b.program()[out.id].heads(), rank = query.rank(b.program());
  MlaQuery first = query;
  first.out.id = b.activation("query", kStepRows, heads, b.program()[query.cache.id].columns());
  b.emit(first);
  const TensorId context = b.activation("context", kStepRows, heads, rank);
  b.emit(MlaAttend{{first.out.id}, {query.cache.id}, {context}, scale, query.cache_layer});
  b.emit(HeadMatmul{{context}, v_b, out, Reduce::Columns});
}

void MlaHeads::expand_to_values(Builder& b, int64_t latent_rows) const {
  const int64_t heads = b.program()[out.id].heads(), rank = query.rank(b.program());
  const auto in_latent_space = [&](const char* name, int64_t columns) {
    return b.activation(name, kStepRows, heads, columns, quant::Type::F32, latent_rows);
  };
  MlaQuery first = query;
  first.out.id = in_latent_space("query", b.program()[query.cache.id].columns());
  const TensorId context = in_latent_space("context", rank);
  const auto [turn, queries] = first.expand_to_queries(b);
  b.emit(MlaValues{.turn = turn,
                   .queries = queries,
                   .attend = {{first.out.id}, {query.cache.id}, {context}, scale, query.cache_layer},
                   .values = {{context}, v_b, out, Reduce::Columns}});
}

std::vector<OpCase> MlaHeads::cases() {
  const auto build = [](bool with_q, Reduce reduce, quant::Type cache = quant::Type::F16,
                        int64_t heads = 20) {
    return [=](Builder& b) {
      MlaHeads op{
          .query = MlaQuery::example(b, {.heads = heads, .with_q = with_q, .reduce = reduce, .cache = cache}),
          .v_b = {b.weight("v_b", quant::Type::Q8_0, heads, 256, 512)},
          .out = {b.activation("values", kStepRows, heads, 256)},
          .scale = 0x1p-15f};
      b.emit(op);
    };
  };
  const auto of_q4_k = [](Builder& b) {
    b.emit(MlaHeads{.query = MlaQuery::example(b, {.q = quant::Type::Q4_K, .k_b = quant::Type::Q5_0}),
                    .v_b = {b.weight("v_b", quant::Type::Q4_K, 20, 256, 512)},
                    .out = {b.activation("values", kStepRows, 20, 256)},
                    .scale = 0x1p-15f});
  };
  return {{"20 heads with q rows 1", 1, build(true, Reduce::Columns)},
          {"20 heads rows 1", 1, build(false, Reduce::Columns)},
          {"20 heads along rows, rows 5", 5, build(true, Reduce::Rows)},
          {"20 heads with q, cache of Q8_0, rows 1", 1, build(true, Reduce::Columns, quant::Type::Q8_0)},
          {"20 heads, cache of Q8_0, rows 5", 5, build(false, Reduce::Columns, quant::Type::Q8_0)},
          {"27 heads rows 1", 1, build(false, Reduce::Columns, quant::Type::F16, 27)},
          {"38 heads rows 1", 1, build(false, Reduce::Columns, quant::Type::F16, 38)},
          {"20 heads of Q4_K with q, rows 4", 4, of_q4_k}};
}

}  // namespace sluice::program
