#include "program/ops/norm_moe_gate_up.h"

#include "program/ops/checks.h"
#include "program/ops/sigmoid_mul.h"

namespace sluice::program {
namespace {

/// The two ops, with `normed` between them.
std::pair<NormRoute, MoeGateUp> halves(const NormMoeGateUp& op, TensorId normed) {
  std::pair<NormRoute, MoeGateUp> both{op.route, op.experts};
  both.first.normed.id = both.second.in.id = normed;
  both.second.ids.id = op.route.route.ids.id;
  return both;
}

}  // namespace

void NormMoeGateUp::check(const Program& p) const {
  // The normed row is as the row is: it stands for what is not in the Program.
  const auto [first, second] = halves(*this, route.in.id);
  first.check(p), second.check(p);
  if (!shared_router) return;
  if (!experts.shared_gate) fail("shared_router: there are no shared experts");
  expect_weight(p, "shared_router", shared_router.id);
  expect_shape(p, "shared_router", shared_router.id, {1, 1, p[route.in.id].columns()});
}

Cost NormMoeGateUp::cost(const Program& p, const StepShape& shape) const {
  const auto [first, second] = halves(*this, route.in.id);
  Cost cost = first.cost(p, shape);
  cost += second.cost(p, shape);
  // The normed row is neither written nor read, and the ids are not read back.
  const double inside = p.bytes(route.in.id, shape);
  cost.bytes_read -= inside + p.bytes(route.route.ids.id, shape);
  cost.bytes_written -= inside;
  if (shared_router) {
    cost.bytes_read += p.bytes(shared_router.id, shape);
    cost.flops += 2 * Program::rows(p[route.in.id], shape) * p.elements(shared_router.id, shape) +
                  p.elements(experts.shared_out.id, shape);
  }
  return cost;
}

void NormMoeGateUp::expand(Builder& b) const {
  if (shared_router) {
    const TensorId share = b.norm_matmul(route.in.id, route.norm.id, route.epsilon, shared_router.id);
    NormMoeGateUp rest = *this;
    const Tensor out = b.program()[experts.shared_out.id];
    rest.shared_router = {};
    rest.experts.shared_out.id = b.activation("shared_gated", out.shape[0], 1, out.columns());
    b.emit(rest);
    b.emit(SigmoidMul{{rest.experts.shared_out.id}, {share}, experts.shared_out});
    return;
  }
  const auto [first, second] =
      halves(*this, b.activation("normed", kStepRows, 1, b.program()[route.in.id].columns()));
  b.emit(first);
  b.emit(second);
}

std::vector<OpCase> NormMoeGateUp::cases() {
  const auto build = [](int64_t experts, int64_t used, quant::Type shared, const Route& route,
                        int64_t columns = 2048, int64_t shared_outputs = 160,
                        quant::Type gate = quant::Type::Q4_0, bool shares = false) {
    return [=](Builder& b) {
      constexpr int64_t kOutputs = 96;
      NormMoeGateUp op;
      op.route = {.in = {b.activation("x", kStepRows, 1, columns)},
                  .norm = {b.weight("norm", quant::Type::F32, 1, 1, columns)},
                  .router = {b.weight("router", quant::Type::F32, 1, experts, columns)},
                  .route = route};
      if (route.gating == Gating::Sigmoid)
        op.route.route.bias.id = b.weight("bias", quant::Type::F32, 1, 1, experts);
      op.route.route.ids.id = b.activation("expert_ids", kStepRows, 1, used, quant::Type::I32);
      op.route.route.weights.id = b.activation("expert_weights", kStepRows, 1, used);
      op.experts.gate.id = b.weight("gate", gate, experts, kOutputs, columns);
      op.experts.up.id = b.weight("up", gate, experts, kOutputs, columns);
      if (shared != quant::Type::F32) {
        op.experts.shared_gate.id = b.weight("shared_gate", shared, 1, shared_outputs, columns);
        op.experts.shared_up.id = b.weight("shared_up", shared, 1, shared_outputs, columns);
        op.experts.shared_out.id = b.activation("shared_gated", kStepRows, 1, shared_outputs);
        if (shares) op.shared_router.id = b.weight("shared_router", quant::Type::F32, 1, 1, columns);
      }
      op.experts.out.id = b.activation("gated", kStepRows, used, kOutputs);
      b.emit(op);
    };
  };
  const Route sigmoid{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
  const Route softmax{.gating = Gating::Softmax};
  Route groups = sigmoid;
  groups.groups = 4, groups.groups_used = 2;
  const auto build_biased = [=](Builder& b) {
    NormMoeGateUp op;
    op.route = {.in = {b.activation("x", kStepRows, 1, 576)},
                .norm = {b.weight("norm", quant::Type::F32, 1, 1, 576)},
                .router = {b.weight("router", quant::Type::F32, 1, 32, 576)},
                .router_bias = {b.weight("router_bias", quant::Type::F32, 1, 1, 32)},
                .route = {.gating = Gating::Softmax, .normalize = true}};
    op.experts = {.gate = {b.weight("gate", quant::Type::MXFP4, 32, 96, 576)},
                  .up = {b.weight("up", quant::Type::MXFP4, 32, 96, 576)},
                  .gate_bias = {b.weight("gate_bias", quant::Type::F32, 1, 32, 96)},
                  .up_bias = {b.weight("up_bias", quant::Type::F32, 1, 32, 96)},
                  .form = {.alpha = 1.702f, .limit = 60, .shift = 1}};
    b.norm_moe_gate_up(op, 4);
  };
  const auto build_scaled = [=](Builder& b) {
    NormMoeGateUp op;
    op.route = {.in = {b.activation("x", kStepRows, 1, 2048)},
                .norm = {b.weight("norm", quant::Type::F32, 1, 1, 2048)},
                .router = {b.weight("router", quant::Type::F32, 1, 32, 2048)},
                .route = sigmoid};
    op.route.route.bias.id = b.weight("bias", quant::Type::F32, 1, 1, 32);
    op.experts = {.gate = {b.weight("gate", quant::Type::NVFP4, 32, 96, 2048)},
                  .up = {b.weight("up", quant::Type::NVFP4, 32, 96, 2048)},
                  .gate_scale = {b.weight("gate_scale", quant::Type::F32, 1, 1, 32)},
                  .up_scale = {b.weight("up_scale", quant::Type::F32, 1, 1, 32)}};
    b.norm_moe_gate_up(op, 4);
  };
  using quant::Type;
  // Of 1,024 columns and one row, a single output of Q5_K was a third of the sum of squares, and the CPU's
  // error, too, above the limit. A share makes a few rows most of the sum: of 7 rows of Q4_K the same.
  return {{"softmax 4 of 32 of MXFP4, biased and clamped, rows 3", 3, build_biased},
          {"sigmoid 4 of 32 of NVFP4, scaled, rows 1", 1, build_scaled},
          {"sigmoid 4 of 32 of NVFP4, scaled, rows 5", 5, build_scaled},
          {"sigmoid 4 of 64 with shared rows 1", 1, build(64, 4, Type::Q5_K, sigmoid)},
          {"softmax 6 of 64 with shared rows 1", 1, build(64, 6, Type::Q4_0, softmax)},
          {"sigmoid 8 of 160 in groups rows 1", 1, build(160, 8, Type::F32, groups)},
          {"softmax 8 of 256 of Q4_K with a share of shared rows 1", 1,
           build(256, 8, Type::Q4_K, softmax, 2048, 160, Type::Q4_K, true)},
          {"softmax 4 of 64 of Q4_K with a share of shared rows 2", 2,
           build(64, 4, Type::Q4_K, softmax, 2048, 512, Type::Q4_K, true)},
          {"softmax 4 of 64 with a share of shared rows 7", 7,
           build(64, 4, Type::Q4_0, softmax, 2048, 160, Type::Q4_0, true)},
          {"softmax 4 of 64 of Q4_K with a share of shared rows 20", 20,
           build(64, 4, Type::Q4_K, softmax, 2048, 512, Type::Q4_K, true)},
          {"sigmoid 4 of 64 with shared rows 5", 5, build(64, 4, Type::Q5_K, sigmoid)},
          {"softmax 6 of 64 with wide shared rows 4", 4, build(64, 6, Type::Q5_K, softmax, 1280, 2816)},
          {"sigmoid 4 of 64 of Q4_K with shared rows 6", 6,
           build(64, 4, Type::Q4_K, sigmoid, 2048, 176, Type::Q4_K)},
          {"sigmoid 8 of 160 of Q4_K in groups rows 5", 5,
           build(160, 8, Type::F32, groups, 2048, 160, Type::Q4_K)},
          {"softmax 8 of 32 of Q5_K rows 6", 6, build(32, 8, Type::F32, softmax, 2048, 160, Type::Q5_K)},
          {"sigmoid 4 of 32 of Q8_0 with shared rows 7", 7,
           build(32, 4, Type::Q8_0, sigmoid, 1024, 160, Type::Q8_0)},
          {"sigmoid 4 of 16 of MXFP4 with shared rows 8", 8,
           build(16, 4, Type::Q8_0, sigmoid, 1024, 160, Type::MXFP4)},
          {"softmax 8 of 32 of IQ4_XS rows 4", 4, build(32, 8, Type::F32, softmax, 1024, 160, Type::IQ4_XS)}};
}

}  // namespace sluice::program
