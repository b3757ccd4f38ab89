#include "program/ops/gqa_query.h"

#include "program/ops/checks.h"

namespace sluice::program {

int64_t GqaQuery::rope_columns(const Program& p) const { return p[q.id].columns() - passed; }

std::string GqaQuery::attributes() const {
  return fmt::format("cache layer {} rope base {:g}{}", cache_layer, rope.base,
                     passed > 0 ? fmt::format(" passed {}", passed) : "");
}

void GqaQuery::check(const Program& p) const {
  check_operands(p);
  expect_shape(p, "out", out.id, {kStepRows, p[q.id].heads(), p[q.id].columns()});
}

void GqaQuery::check_operands(const Program& p) const {
  const Tensor &query = p[q.id], &key = p[k.id];
  const int64_t columns = query.columns(), values = p[v.id].columns(), rotated = rope_columns(p);
  if (passed < 0 || rotated < 2 || rotated % 2 != 0)
    fail("q: {} of {} columns rotate, expected pairs", rotated, columns);
  expect_shape(p, "k", k.id, {kStepRows, key.heads(), columns});
  expect_shape(p, "v", v.id, {kStepRows, 1, values});
  if (query.heads() % key.heads() != 0 || values % key.heads() != 0)
    fail("{} heads of queries and {} columns of values for {} heads of keys", query.heads(), values,
         key.heads());
  struct Vector {
    const char* name;
    Read weight;
    int64_t columns;
  };
  for (const auto& [name, weight, expected] : {Vector{"q_bias", q_bias, query.heads() * columns},
                                               {"k_bias", k_bias, key.heads() * columns},
                                               {"v_bias", v_bias, values},
                                               {"q_norm", q_norm, columns},
                                               {"k_norm", k_norm, columns},
                                               {"factors", factors, rotated / 2}}) {
    if (!weight) continue;
    expect_weight(p, name, weight.id);
    expect_shape(p, name, weight.id, {1, 1, expected});
  }
  expect_shape(p, "cache", cache.id, {p[cache.id].shape[0], kPageRows, key.heads() * columns + values});
  if (cache_layer < 0 || cache_layer >= p[cache.id].shape[0])
    fail("cache layer {} is not there", cache_layer);
}

Cost GqaQuery::cost(const Program& p, const StepShape& shape) const {
  const double share = static_cast<double>(rope_columns(p)) / static_cast<double>(p[q.id].columns());
  const double cached = p.bytes(cache.id, shape.rows * static_cast<double>(p[cache.id].columns()));
  const double queries = out.id == kNoTensor ? 0 : p.bytes(out.id, shape);
  Cost cost{bytes_of(p, shape, {q.id, k.id, v.id, q_norm.id, k_norm.id, factors.id}), queries + cached,
            3 * share * (p.elements(q.id, shape) + p.elements(k.id, shape))};
  for (const auto& [rows, bias] : {std::pair{q, q_bias}, {k, k_bias}, {v, v_bias}}) {
    if (!bias) continue;
    cost.bytes_read += p.bytes(bias.id, shape);
    cost.flops += p.elements(rows.id, shape);
  }
  return cost;
}

void GqaQuery::expand(Builder& b) const {
  const auto biased = [&](Read rows, Read bias) {
    return Read{bias ? b.add_bias(rows.id, bias.id) : rows.id};
  };
  const auto normed = [&](Read heads, Read norm) {
    return norm ? b.rms_norm(heads.id, norm.id, epsilon) : heads.id;
  };
  const Tensor keys = b.program()[k.id];
  const TensorId key = b.activation("key", kStepRows, keys.heads(), keys.columns());
  b.rope(normed(biased(k, k_bias), k_norm), rope, key, factors.id, passed);
  b.emit(KvAppend{{b.flatten(key)}, biased(v, v_bias), cache, cache_layer});
  b.rope(normed(biased(q, q_bias), q_norm), rope, out.id, factors.id, passed);
}

GqaQuery GqaQuery::example(Builder& b, const Example& of) {
  GqaQuery op{.cache = {b.cache(2, of.kv_heads * (of.columns + of.value), of.cache)},
              .rope = {1e6},
              .passed = of.passed,
              .cache_layer = 1};
  op.rope.pairs = of.pairs;
  op.q.id = b.activation("q", kStepRows, of.heads, of.columns);
  op.k.id = b.activation("k", kStepRows, of.kv_heads, of.columns);
  op.v.id = b.activation("v", kStepRows, 1, of.kv_heads * of.value);
  const auto bias = [&](Read& to, const char* name, int64_t columns) {
    if (of.biases) to.id = b.weight(name, quant::Type::F32, 1, 1, columns);
  };
  bias(op.q_bias, "q_bias", of.heads * of.columns);
  bias(op.k_bias, "k_bias", of.kv_heads * of.columns);
  bias(op.v_bias, "v_bias", of.kv_heads * of.value);
  if (of.norms) {
    op.q_norm.id = b.weight("q_norm", quant::Type::F32, 1, 1, of.columns);
    op.k_norm.id = b.weight("k_norm", quant::Type::F32, 1, 1, of.columns);
  } else {
    op.factors.id = b.weight("factors", quant::Type::F32, 1, 1, (of.columns - of.passed) / 2);
  }
  return op;
}

std::vector<OpCase> GqaQuery::cases() {
  // What enters the cache is looked at through the attention behind.
  const auto build = [](const Example& of) {
    return [=](Builder& b) {
      GqaQuery op = example(b, of);
      op.out.id = b.activation("query", kStepRows, of.heads, of.columns);
      b.emit(op);
      b.attend(op.out.id, op.cache.id, of.kv_heads, of.value, 0.0625f, 1);
    };
  };
  return {{"8 heads of 128 by 2, rows 1", 1, build({8, 2, 128, 128})},
          {"8 heads of 128 by 2, rows 5", 5, build({8, 2, 128, 128})},
          {"12 heads of 64 by 4, neighbours, factors, rows 3", 3,
           build({.heads = 12,
                  .kv_heads = 4,
                  .columns = 64,
                  .value = 64,
                  .norms = false,
                  .pairs = RopePairs::Neighbours})},
          {"4 heads of 256 by 2, 192 passed, rows 2", 2,
           build({.heads = 4, .kv_heads = 2, .columns = 256, .value = 256, .passed = 192})},
          {"6 heads of 128 by 2, cache of Q8_0, rows 4", 4,
           build({.heads = 6, .kv_heads = 2, .columns = 128, .value = 128, .cache = quant::Type::Q8_0})},
          {"4 heads of 80 by 2, rows 2", 2, build({4, 2, 80, 80})},
          {"8 heads of 64 by 2, values of 32, biases, rows 3", 3,
           build({.heads = 8, .kv_heads = 2, .columns = 64, .value = 32, .norms = false, .biases = true})},
          {"8 heads of 128 by 2, biases and norms, rows 70", 70,
           build({.heads = 8, .kv_heads = 2, .columns = 128, .value = 128, .biases = true})}};
}

}  // namespace sluice::program
