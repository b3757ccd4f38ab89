#include "program/ops/mla_query.h"

#include "program/ops/checks.h"

namespace sluice::program {

std::string MlaQuery::attributes() const {
  return fmt::format("cache layer {} rope base {:g}", cache_layer, rope.base);
}

int64_t MlaQuery::p_columns(const Program& p, TensorId id) { return p[id].columns(); }
int64_t MlaQuery::nope(const Program& p) const {
  return k_b_reduce == Reduce::Columns ? p[k_b.id].columns() : p[k_b.id].shape[1];
}

void MlaQuery::check_weights(const Program& p, int64_t heads, int64_t low) const {
  const int64_t rotated = rope_columns(p), query = nope(p) + rotated;
  if (rotated < 2 || rotated % 2 != 0) fail("cache: {} columns to turn", rotated);
  if (static_cast<bool>(q) != static_cast<bool>(q_norm)) fail("q and its norm go together");
  if (q) {
    expect_weight(p, "q", q.id);
    expect_shape(p, "q", q.id, {1, heads * query, low});
    expect_shape(p, "q_norm", q_norm.id, {1, 1, low});
  }
  expect_weight(p, "kv_norm", kv_norm.id);
  expect_weight(p, "k_b", k_b.id);
  const int64_t rows = k_b_reduce == Reduce::Columns ? rank(p) : nope(p);
  expect_shape(p, "k_b", k_b.id, {heads, rows, rank(p) + nope(p) - rows});
  if (factors) expect_shape(p, "factors", factors.id, {1, 1, rotated / 2});
  if (cache_layer < 0 || cache_layer >= p[cache.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

void MlaQuery::check(const Program& p, int64_t heads) const {
  check_weights(p, heads, p[in.id].columns());
  if (!q) expect_shape(p, "in", in.id, {kStepRows, heads, nope(p) + rope_columns(p)});
  expect_shape(p, "kv", kv.id, {kStepRows, 1, p[cache.id].columns()});
}

void MlaQuery::check(const Program& p) const {
  const int64_t heads = p[out.id].heads();
  check(p, heads);
  expect_shape(p, "out", out.id, {kStepRows, heads, p[cache.id].columns()});
}

Cost MlaQuery::cost(const Program& p, const StepShape& shape) const {
  Cost cost{bytes_of(p, shape, {in.id, q_norm.id, q.id, kv.id, kv_norm.id, k_b.id, factors.id}),
            p.bytes(cache.id, shape.rows * static_cast<double>(p[cache.id].columns())), 0};
  if (out.id != kNoTensor) cost.bytes_written += p.bytes(out.id, shape);
  for (const Read weight : {q, k_b}) {
    if (weight) cost.flops += 2 * shape.rows * p.elements(weight.id, shape);
  }
  return cost;
}

void MlaQuery::expand(Builder& b) const {
  const auto [turn, queries] = expand_to_queries(b);
  b.emit(turn);
  b.emit(queries);
}

MlaQuery::ToLatent MlaQuery::expand_to_queries(Builder& b) const {
  const int64_t heads = b.program()[out.id].heads(), rank = this->rank(b.program());
  const int64_t nope = this->nope(b.program()), rotated = rope_columns(b.program());
  const TensorId q_in = q ? b.rms_norm(in.id, q_norm.id, epsilon) : in.id;
  const TensorId latent = b.rms_norm(b.columns(kv.id, "latent", 0, rank), kv_norm.id, epsilon);
  const TensorId key = b.activation("rope_key", kStepRows, 1, rotated);
  b.rope(b.columns(kv.id, "rope_in", rank, rotated), rope, key, factors.id);
  b.emit(KvAppend{{latent}, {key}, cache, cache_layer});
  const TensorId queries = q ? b.matmul(q_in, q.id, heads) : q_in;  // [rows, heads, nope + rope]
  Rope turn{{b.columns(queries, "q_rope", nope, rotated)}, {}, rope, factors};
  turn.out.id = b.columns(out.id, "query_rope", rank, rotated);
  HeadMatmul to_latent{{b.columns(queries, "q_nope", 0, nope)}, k_b, {}, k_b_reduce};
  to_latent.out.id = b.columns(out.id, "query_latent", 0, rank);
  return {turn, to_latent};
}

MlaQuery MlaQuery::example(Builder& b, const Example& of) {
  constexpr int64_t kRotated = 64, kRank = 512, kLow = 768;
  MlaQuery op;
  if (of.with_q) {
    op.in.id = b.activation("x", kStepRows, 1, kLow);
    op.q_norm.id = b.weight("q_norm", quant::Type::F32, 1, 1, kLow);
    op.q.id = b.weight("q", of.q, 1, of.heads * (of.nope + kRotated), kLow);
  } else {
    op.in.id = b.activation("x", kStepRows, of.heads, of.nope + kRotated);
  }
  op.kv.id = b.activation("kv", kStepRows, 1, kRank + kRotated);
  op.kv_norm.id = b.weight("kv_norm", quant::Type::F32, 1, 1, kRank);
  const bool columns = of.reduce == Reduce::Columns;
  op.k_b.id = b.weight("k_b", of.k_b, of.heads, columns ? kRank : of.nope, columns ? of.nope : kRank);
  op.cache.id = b.cache(2, kRank + kRotated, of.cache, kRotated);
  op.rope.base = 1e6;
  op.k_b_reduce = of.reduce;
  op.cache_layer = 1;
  return op;
}

std::vector<OpCase> MlaQuery::cases() {
  const auto build = [](bool with_q, Reduce reduce, quant::Type cache = quant::Type::F16) {
    return [=](Builder& b) {
      MlaQuery op = example(b, {.with_q = with_q, .reduce = reduce, .cache = cache});
      op.out.id = b.activation("query", kStepRows, 20, 576);
      b.emit(op);
    };
  };
  const auto of_q4_k = [](Builder& b) {
    MlaQuery op = example(b, {.q = quant::Type::Q4_K, .k_b = quant::Type::Q5_0});
    op.out.id = b.activation("query", kStepRows, 20, 576);
    b.emit(op);
  };
  return {{"20 heads with q rows 1", 1, build(true, Reduce::Columns)},
          {"20 heads rows 1", 1, build(false, Reduce::Columns)},
          {"20 heads along rows, rows 5", 5, build(true, Reduce::Rows)},
          {"20 heads with q, cache of Q8_0, rows 1", 1, build(true, Reduce::Columns, quant::Type::Q8_0)},
          {"20 heads with q of Q4_K, rows 4", 4, of_q4_k}};
}

}  // namespace sluice::program
