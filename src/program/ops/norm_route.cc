#include "program/ops/norm_route.h"

#include "program/ops/checks.h"

namespace sluice::program {

void NormRoute::check(const Program& p) const {
  RmsNorm{in, norm, normed, epsilon}.check(p);
  expect_weight(p, "router", router.id);
  const int64_t experts = p[router.id].shape[1], used = p[route.ids.id].columns();
  expect_shape(p, "router", router.id, {1, experts, p[in.id].columns()});
  if (router_bias) {
    expect_weight(p, "router_bias", router_bias.id);
    expect_shape(p, "router_bias", router_bias.id, {1, 1, experts});
  }
  expect_type(p, "ids", route.ids.id, quant::Type::I32);
  expect_shape(p, "ids", route.ids.id, {kStepRows, 1, used});
  expect_shape(p, "weights", route.weights.id, {kStepRows, 1, used});
  route.check_rule(experts, used);
}

Cost NormRoute::cost(const Program& p, const StepShape& shape) const {
  const double rows = Program::rows(p[in.id], shape);
  const auto experts = static_cast<double>(p[router.id].shape[1]);
  return {bytes_of(p, shape, {in.id, norm.id, router.id, router_bias.id, route.bias.id}),
          bytes_of(p, shape, {normed.id, route.ids.id, route.weights.id}),
          4 * p.elements(in.id, shape) + 2 * rows * p.elements(router.id, shape) + 4 * rows * experts};
}

void NormRoute::expand(Builder& b) const {
  b.emit(RmsNorm{in, norm, normed, epsilon});
  Route rest = route;
  rest.logits.id = b.matmul(normed.id, router.id);
  if (router_bias) rest.logits.id = b.add_bias(rest.logits.id, router_bias.id);
  b.emit(rest);
}

std::vector<OpCase> NormRoute::cases() {
  // One result alone is looked at by tests: the last activation that is no id. Ids of close scores may differ
  // where a norm was rounded, so the scores lie apart.
  const auto build = [](int64_t experts, int64_t used, Route route, bool biased, bool router_biased = false) {
    return [=](Builder& b) {
      NormRoute op{.in = {b.activation("x", kStepRows, 1, 2048)},
                   .norm = {b.weight("norm", quant::Type::F32, 1, 1, 2048)},
                   .router = {b.weight("router", quant::Type::F32, 1, experts, 2048)},
                   .normed = {b.activation("normed", kStepRows, 1, 2048)},
                   .route = route};
      if (router_biased) op.router_bias.id = b.weight("router_bias", quant::Type::F32, 1, 1, experts);
      if (biased) op.route.bias.id = b.weight("bias", quant::Type::F32, 1, 1, experts);
      op.route.ids.id = b.activation("expert_ids", kStepRows, 1, used, quant::Type::I32);
      op.route.weights.id = b.activation("expert_weights", kStepRows, 1, used);
      b.emit(op);
    };
  };
  return {
      {"sigmoid 4 of 64", 1,
       build(64, 4, {.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f}, true)},
      {"softmax 6 of 64", 3, build(64, 6, {.gating = Gating::Softmax}, false)},
      {"softmax 4 of 32, biased router", 3,
       build(32, 4, {.gating = Gating::Softmax, .normalize = true}, false, true)},
      {"sigmoid 4 of 64, rows 37", 37,
       build(64, 4, {.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f}, true)},
      {"sigmoid 8 of 200, rows 21", 21, build(200, 8, {.gating = Gating::Sigmoid, .normalize = true}, true)},
      {"softmax 4 of 32, biased router, rows 20", 20,
       build(32, 4, {.gating = Gating::Softmax, .normalize = true}, false, true)},
      {"sigmoid 6 of 72 in 9 groups, rows 18", 18,
       build(72, 6, {.gating = Gating::Sigmoid, .normalize = true, .groups = 9, .groups_used = 3}, true)}};
}

}  // namespace sluice::program
