#include "program/ops/mla_values.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

std::string MlaValues::attributes() const {
  return fmt::format("{} rope {}", attend.attributes(), turn.attributes());
}

void MlaValues::check(const Program& p) const {
  turn.check(p);
  queries.check(p);
  attend.check(p);
  values.check(p);
  const Tensor &query = p[queries.out.id], &rotated = p[turn.out.id], &q = p[attend.q.id];
  const int64_t rank = p[attend.out.id].columns();
  const TensorId storage = p.storage(attend.q.id);
  if (p.storage(queries.out.id) != storage || query.offset != q.offset)
    fail("query: not the first columns of {}", q.name);
  expect_shape(p, "query", queries.out.id, {kStepRows, q.heads(), rank});
  if (p.storage(turn.out.id) != storage || rotated.offset != q.offset + rank)
    fail("rotated: not the last columns of {}", q.name);
  expect_shape(p, "rotated", turn.out.id, {kStepRows, q.heads(), q.columns() - rank});
  if (values.in.id != attend.out.id) fail("context: {} is not what attention leaves", p[values.in.id].name);
}

/// In latent space, or with the keys and values of every head expanded once for all cache rows, whichever is
/// less.
Cost MlaValues::cost(const Program& p, const StepShape& shape) const {
  const auto width = static_cast<double>(p[attend.cache.id].columns());
  const auto rank = static_cast<double>(p[attend.out.id].columns());
  const auto heads = static_cast<double>(p[attend.q.id].heads());
  const auto nope = static_cast<double>(p[queries.in.id].columns());
  const auto value = static_cast<double>(p[values.out.id].columns());
  const double attended = shape.rows * shape.context * heads, of_a_row = rank * (nope + value) * heads;
  const double latent = attended * (width + rank) + shape.rows * of_a_row;
  const double expanded = attended * (nope + width - rank + value) + shape.cache_rows * of_a_row;
  return {bytes_of(p, shape, {queries.in.id, queries.weight.id, values.weight.id}) +
              turn.cost(p, shape).bytes_read + p.bytes(attend.cache.id, shape.cache_rows * width),
          p.bytes(values.out.id, shape), 2 * std::min(latent, expanded) + turn.cost(p, shape).flops};
}

void MlaValues::expand(Builder& b) const {
  b.emit(turn);
  b.emit(queries);
  b.emit(attend);
  b.emit(values);
}

std::vector<OpCase> MlaValues::cases() {
  struct Shape {
    int64_t heads, rank, nope, rope, value;
    quant::Type cache = quant::Type::F16, weights = quant::Type::Q8_0;
  };
  const auto build = [](Shape s) {
    return [=](Builder& b) {
      const TensorId cache = b.cache(1, s.rank + s.rope, s.cache, s.rope);
      b.kv_append(b.activation("latent", kStepRows, 1, s.rank), b.activation("key", kStepRows, 1, s.rope),
                  cache, 0);
      const TensorId q = b.activation("q", kStepRows, s.heads, s.rank + s.rope);
      const TensorId context = b.activation("context", kStepRows, s.heads, s.rank);
      const TensorId out = b.activation("out", kStepRows, s.heads, s.value);
      b.emit(MlaValues{.turn = {{b.activation("q_rope", kStepRows, s.heads, s.rope)},
                                {b.columns(q, "query_rope", s.rank, s.rope)}},
                       .queries = {{b.activation("in", kStepRows, s.heads, s.nope)},
                                   {b.weight("k_b", s.weights, s.heads, s.rank, s.nope)},
                                   {b.columns(q, "query", 0, s.rank)}},
                       .attend = {{q}, {cache}, {context}, 0x1p-10f, 0},
                       .values = {{context}, {b.weight("v_b", s.weights, s.heads, s.value, s.rank)}, {out}}});
      // What it leaves in query and context on the way is no result.
      b.emit(Add{{out},
                 {b.activation("other", kStepRows, s.heads, s.value)},
                 {b.activation("sum", kStepRows, s.heads, s.value)}});
    };
  };
  return {
      {"GLM's heads rows 1", 1, build({20, 512, 192, 64, 256})},
      {"GLM's heads rows 150", 150, build({20, 512, 192, 64, 256})},
      {"16 heads rows 333", 333, build({16, 512, 128, 64, 128})},
      {"16 heads of Q4_0 rows 200", 200, build({16, 512, 128, 64, 128, quant::Type::F16, quant::Type::Q4_0})},
      {"3 heads, cache of Q8_0, rows 300", 300, build({3, 512, 128, 64, 128, quant::Type::Q8_0})},
      {"5 small heads rows 140", 140, build({5, 64, 32, 32, 48})}};
}

}  // namespace sluice::program
