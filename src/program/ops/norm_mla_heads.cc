#include "program/ops/norm_mla_heads.h"

#include "program/ops/checks.h"

namespace sluice::program {

int64_t NormMlaHeads::query_columns(const Program& p) const {
  return heads.query.nope(p) + heads.query.rope_columns(p);
}

void NormMlaHeads::check(const Program& p) const {
  const MlaQuery& query = heads.query;
  for (const TensorId inside :
       {products.out_a.id, products.out_b.id, products.c.id, query.in.id, query.kv.id})
    if (inside != kNoTensor) fail("{}: it stays inside", p[inside].name);
  const int64_t columns = p[products.in.id].columns();
  if (p[products.in.id].heads() != 1) fail("in: {} has heads", p[products.in.id].name);
  expect_weight(p, "norm", products.norm.id);
  expect_shape(p, "norm", products.norm.id, {1, 1, columns});
  expect_weight(p, "a", products.a.id);
  const int64_t low = query.q ? p[query.q.id].columns() : 0;
  expect_shape(p, "a", products.a.id,
               {1, low > 0 ? low : p[heads.out.id].heads() * query_columns(p), columns});
  expect_weight(p, "b", products.b.id);
  expect_shape(p, "b", products.b.id, {1, p[query.cache.id].columns(), columns});
  heads.check_weights(p, low);
}

Cost NormMlaHeads::cost(const Program& p, const StepShape& shape) const {
  Cost cost = products.cost(p, shape);
  cost += heads.cost(p, shape);
  return cost;
}

void NormMlaHeads::expand(Builder& b) const {
  const Program& p = b.program();
  NormMatmul first = products;
  MlaHeads second = heads;
  second.query.in.id = first.out_a.id =
      heads.query.q ? b.activation("q_low", kStepRows, 1, p[heads.query.q.id].columns())
                    : b.activation("q", kStepRows, p[heads.out.id].heads(), query_columns(p));
  second.query.kv.id = first.out_b.id = b.activation("kv", kStepRows, 1, p[heads.query.cache.id].columns());
  b.emit(first);
  b.emit(second);
}

std::vector<OpCase> NormMlaHeads::cases() {
  using quant::Type;
  struct Shape {
    int64_t columns, heads, nope, value;
    Type low, b = Type::Q8_0, cache = Type::F16;
    bool with_q = true;
    int64_t wide_low = 0;  // columns of a low-rank query that is wider than the example's
    Type v_b = Type::F32;  // F32: as b
  };
  const auto build = [](const Shape& s) {
    return [=](Builder& b) {
      MlaHeads heads{.query = MlaQuery::example(b, {.heads = s.heads,
                                                    .nope = s.nope,
                                                    .with_q = s.with_q && s.wide_low == 0,
                                                    .q = s.low,
                                                    .k_b = s.b,
                                                    .cache = s.cache}),
                     .v_b = {b.weight("v_b", s.v_b == Type::F32 ? s.b : s.v_b, s.heads, s.value, 512)},
                     .out = {b.activation("values", kStepRows, s.heads, s.value)},
                     .scale = 0x1p-15f};
      heads.query.in = heads.query.kv = {};
      if (s.wide_low > 0) {
        heads.query.q_norm.id = b.weight("q_norm", Type::F32, 1, 1, s.wide_low);
        heads.query.q.id = b.weight("q", s.low, 1, s.heads * (s.nope + 64), s.wide_low);
      }
      const int64_t low = s.with_q ? b.program()[heads.query.q.id].columns() : s.heads * (s.nope + 64);
      b.emit(NormMlaHeads{.products = {.in = {b.activation("x", kStepRows, 1, s.columns)},
                                       .norm = {b.weight("norm", Type::F32, 1, 1, s.columns)},
                                       .a = {b.weight("a", s.low, 1, low, s.columns)},
                                       .b = {b.weight("b", s.low, 1, 576, s.columns)}},
                          .heads = heads});
    };
  };
  return {{"20 heads Q4_0 rows 1", 1, build({2048, 20, 192, 256, Type::Q4_0})},
          {"16 heads Q4_0, no low-rank query, rows 1", 1,
           build({2048, 16, 128, 128, Type::Q4_0, Type::Q4_0, Type::F16, false})},
          {"16 heads Q6_K, cache of Q8_0, rows 1", 1,
           build({2048, 16, 128, 128, Type::Q6_K, Type::Q8_0, Type::Q8_0})},
          {"4 heads of 1024 columns Q8_0 rows 1", 1, build({1024, 4, 64, 96, Type::Q8_0})},
          {"16 heads Q4_0, low-rank query of 1536, rows 1", 1,
           build({2048, 16, 128, 128, Type::Q4_0, Type::Q8_0, Type::F16, true, 1536})},
          {"20 heads Q4_0 rows 2", 2, build({2048, 20, 192, 256, Type::Q4_0})},
          {"16 heads Q4_0, no low-rank query, rows 2", 2,
           build({2048, 16, 128, 128, Type::Q4_0, Type::Q4_0, Type::F16, false})},
          {"20 heads Q4_0 rows 5", 5, build({2048, 20, 192, 256, Type::Q4_0})},
          {"20 heads of 1280 columns Q4_K rows 1", 1,
           build({1280, 20, 192, 256, Type::Q4_K, Type::Q5_0, Type::F16, true, 0, Type::Q4_K})}};
}

}  // namespace sluice::program
