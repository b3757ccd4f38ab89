#include "program/ops/gqa_attend.h"

#include "program/ops/checks.h"
#include "program/ops/sigmoid_mul.h"

namespace sluice::program {

int64_t GqaAttend::kv_heads(const Program& p) const { return p[query.k.id].heads(); }

Attend GqaAttend::attend(const Program& p, TensorId queries) const {
  return {.q = {queries},
          .cache = {query.cache.id},
          .sinks = sinks,
          .out = out,
          .kv_heads = kv_heads(p),
          .scale = scale,
          .cache_layer = query.cache_layer,
          .window = window};
}

std::string GqaAttend::attributes() const {
  return fmt::format("scale {:g} {}{}", scale, query.attributes(),
                     window > 0 ? fmt::format(" window {}", window) : "");
}

void GqaAttend::check(const Program& p) const {
  if (query.out.id != kNoTensor) fail("query: it stays inside");
  query.check_operands(p);
  attend(p, query.q.id).check(p);
  if (gate) expect_shape(p, "gate", gate.id, p[out.id].shape);
}

Cost GqaAttend::cost(const Program& p, const StepShape& shape) const {
  Cost cost = query.cost(p, shape);
  cost += attend(p, query.q.id).cost(p, shape);
  cost.bytes_read -= p.bytes(query.q.id, shape);  // both count it
  if (gate) {
    cost += SigmoidMul{{out.id}, gate, out}.cost(p, shape);
    cost.bytes_read -= p.bytes(out.id, shape);
    cost.bytes_written -= p.bytes(out.id, shape);
  }
  return cost;
}

void GqaAttend::expand(Builder& b) const {
  const Tensor queries = b.program()[query.q.id];
  GqaQuery first = query;
  first.out.id = b.activation("query", kStepRows, queries.heads(), queries.columns());
  b.emit(first);
  Attend second = attend(b.program(), first.out.id);
  if (gate)
    second.out.id = b.activation("context", kStepRows, queries.heads(), b.program()[out.id].columns());
  b.emit(second);
  if (gate) b.emit(SigmoidMul{{second.out.id}, gate, out});
}

std::vector<OpCase> GqaAttend::cases() {
  struct Of {
    GqaQuery::Example query;
    bool sinks = false;
    int64_t window = 0;
    bool gate = false;
  };
  const auto build = [](const Of& of) {
    return [=](Builder& b) {
      const int64_t heads = of.query.heads;
      GqaAttend op{.query = GqaQuery::example(b, of.query), .scale = 0.0625f, .window = of.window};
      if (of.sinks) op.sinks.id = b.weight("sinks", quant::Type::F32, 1, 1, heads);
      op.out.id = b.activation("context", kStepRows, heads, of.query.value);
      // A head's gate lies behind its query in files; here by itself.
      if (of.gate) op.gate.id = b.activation("gate", kStepRows, heads, of.query.value);
      b.emit(op);
    };
  };
  using quant::Type;
  const GqaQuery::Example narrow{
      .heads = 12, .kv_heads = 4, .columns = 64, .value = 64, .norms = false, .pairs = RopePairs::Neighbours};
  const GqaQuery::Example wide{.heads = 16, .kv_heads = 2, .columns = 256, .value = 256, .passed = 192};
  GqaQuery::Example coded{.heads = 32, .kv_heads = 4, .columns = 128, .value = 128, .cache = Type::Q8_0};
  GqaQuery::Example narrow_coded = narrow;
  narrow_coded.cache = Type::Q8_0;
  GqaQuery::Example biased{
      .heads = 16, .kv_heads = 2, .columns = 64, .value = 64, .norms = false, .biases = true};
  GqaQuery::Example biased_coded = coded;
  biased_coded.biases = true;
  return {{"32 heads of 128 by 4, rows 1", 1, build({{32, 4, 128, 128}})},
          {"32 heads of 128 by 4, rows 5", 5, build({{32, 4, 128, 128}})},
          {"32 heads of 128 by 4, rows 70", 70, build({{32, 4, 128, 128}})},
          {"12 heads of 64 by 4, neighbours, factors, rows 3", 3, build({narrow})},
          {"12 heads of 64 by 4, cache of Q8_0, rows 8", 8, build({narrow_coded})},
          {"16 heads of 256 by 2, 192 passed, rows 2", 2, build({wide})},
          {"32 heads of 128 by 4, cache of Q8_0, rows 1", 1, build({coded})},
          {"32 heads of 128 by 4, cache of Q8_0, rows 6", 6, build({coded})},
          {"4 heads of 80 by 2, rows 2", 2, build({{4, 2, 80, 80}})},
          {"6 heads of 64 by 3, values of 32, rows 2", 2, build({{6, 3, 64, 32}})},
          {"16 heads of 64 by 2, sinks, window 3, rows 5", 5, build({{16, 2, 64, 64}, true, 3})},
          {"16 heads of 64 by 2, biases, sinks, rows 1", 1, build({biased, true})},
          {"32 heads of 128 by 4, biases, cache of Q8_0, rows 3", 3, build({biased_coded})},
          {"16 heads of 256 by 2, 192 passed, gate, rows 1", 1, build({wide, false, 0, true})},
          {"16 heads of 256 by 2, 192 passed, gate, rows 7", 7, build({wide, false, 0, true})},
          {"32 heads of 128 by 4, gate, rows 4", 4, build({{32, 4, 128, 128}, false, 0, true})},
          {"32 heads of 128 by 4, gate, rows 70", 70, build({{32, 4, 128, 128}, false, 0, true})}};
}

}  // namespace sluice::program
