#include "program/ops/moe_gate_up.h"

#include "program/ops/checks.h"

namespace sluice::program {

void MoeGateUp::check(const Program& p) const {
  ExpertMatmul{in, gate, ids, out}.check(p);
  ExpertMatmul{in, up, ids, out}.check(p);
  if (p[in.id].heads() != 1) fail("in: {} has heads", p[in.id].name);
  if (static_cast<bool>(gate_bias) != static_cast<bool>(up_bias)) fail("biases are those of gate and of up");
  if (gate_bias)
    ExpertBias{{out.id}, gate_bias, ids, out}.check(p), ExpertBias{{out.id}, up_bias, ids, out}.check(p);
  for (const Read scale : {gate_scale, up_scale})
    if (scale) Scale{{out.id}, scale, ids, out}.check(p);
  SiluMul{{out.id}, {out.id}, out, form}.check(p);
  const bool shared = static_cast<bool>(shared_gate);
  if (shared && !form.is_plain()) fail("shared experts have plain gates");
  if (shared != static_cast<bool>(shared_up) || shared != (shared_out.id != kNoTensor)) {
    fail("shared experts need gate, up and out");
  }
  if (shared) GateUp{in, shared_gate, shared_up, shared_out}.check(p);
}

Cost MoeGateUp::cost(const Program& p, const StepShape& shape) const {
  const auto used = static_cast<double>(p[ids.id].columns());
  const auto& [experts, outputs, inputs] = p[gate.id].shape;
  Cost cost{bytes_of(p, shape, {in.id, ids.id, shared_gate.id, shared_up.id, gate_scale.id, up_scale.id}) +
                expert_bytes(p, gate.id, used, shape) + expert_bytes(p, up.id, used, shape) +
                bias_bytes(p, gate_bias.id, used, shape) + bias_bytes(p, up_bias.id, used, shape),
            bytes_of(p, shape, {out.id, shared_out.id}),
            4 * shape.rows * used * static_cast<double>(outputs * inputs) + 5 * p.elements(out.id, shape)};
  if (shared_gate) cost.flops += 4 * shape.rows * p.elements(shared_gate.id, shape);
  return cost;
}

void MoeGateUp::expand(Builder& b) const {
  // A copy: tensors move when others are added.
  const auto [rows, used, columns] = b.program()[out.id].shape;
  const auto product = [&, rows = rows, used = used, columns = columns](const char* name, Read weight,
                                                                        Read scale, Read bias) {
    TensorId result = b.activation(name, rows, used, columns);
    b.emit(ExpertMatmul{in, weight, ids, {result}});
    if (scale) result = b.scale(result, scale.id, ids.id);
    if (!bias) return result;
    const TensorId biased = b.activation(name, rows, used, columns);
    b.emit(ExpertBias{{result}, bias, ids, {biased}});
    return biased;
  };
  if (shared_gate) b.emit(GateUp{in, shared_gate, shared_up, shared_out});
  const TensorId gate_out = product("gate", gate, gate_scale, gate_bias),
                 up_out = product("up", up, up_scale, up_bias);
  b.emit(SiluMul{{gate_out}, {up_out}, out, form});
}

std::vector<OpCase> MoeGateUp::cases() {
  const auto build = [](bool shared, bool fused) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Sigmoid};
      route.logits.id = b.activation("logits", kStepRows, 1, 16);
      b.route(route, 4);
      MoeGateUp op;
      op.in.id = b.activation("x", kStepRows, 1, 512);
      op.ids.id = route.ids.id;
      if (fused) {  // as files with ffn_gate_up_exps hold them: each expert's gate rows, then its up rows
        const TensorId both = b.weight("gate_up", quant::Type::Q4_0, 16, 512, 512);
        op.gate.id = b.weight_view(both, "gate", 16, 256, 0, 512);
        op.up.id = b.weight_view(both, "up", 16, 256, 256, 512);
      } else {
        op.gate.id = b.weight("gate", quant::Type::Q4_0, 16, 256, 512);
        op.up.id = b.weight("up", quant::Type::Q4_1, 16, 256, 512);
      }
      if (shared) {
        op.shared_gate.id = b.weight("shared_gate", quant::Type::Q5_K, 1, 256, 512);
        op.shared_up.id = b.weight("shared_up", quant::Type::Q5_K, 1, 256, 512);
      }
      b.moe_gate_up(op);
    };
  };
  // All of one type, routers of many experts: few tokens each.
  const auto build_alike = [](quant::Type type, int64_t experts, int64_t columns, bool shared,
                              bool up_first = false) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Sigmoid};
      route.logits.id = b.activation("logits", kStepRows, 1, experts);
      b.route(route, 4);
      MoeGateUp op;
      op.in.id = b.activation("x", kStepRows, 1, columns);
      op.ids.id = route.ids.id;
      if (up_first) {  // in one tensor
        const TensorId both = b.weight("up_gate", type, experts, 80, columns);
        op.gate.id = b.weight_view(both, "gate", experts, 40, 40, 80);
        op.up.id = b.weight_view(both, "up", experts, 40, 0, 80);
      } else {
        op.gate.id = b.weight("gate", type, experts, 40, columns);
        op.up.id = b.weight("up", type, experts, 40, columns);
      }
      if (shared) {
        op.shared_gate.id = b.weight("shared_gate", type, 1, 72, columns);
        op.shared_up.id = b.weight("shared_up", type, 1, 72, columns);
      }
      b.moe_gate_up(op);
    };
  };
  // With biases and a clamped gate, as gpt-oss has them.
  const auto build_biased = [](quant::Type type, int64_t columns, int64_t outputs, float limit) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Softmax, .normalize = true};
      route.logits.id = b.activation("logits", kStepRows, 1, 16);
      b.route(route, 4);
      MoeGateUp op{.form = {.alpha = 1.702f, .limit = limit, .shift = 1}};
      op.in.id = b.activation("x", kStepRows, 1, columns);
      op.ids.id = route.ids.id;
      op.gate.id = b.weight("gate", type, 16, outputs, columns);
      op.up.id = b.weight("up", type, 16, outputs, columns);
      op.gate_bias.id = b.weight("gate_bias", quant::Type::F32, 1, 16, outputs);
      op.up_bias.id = b.weight("up_bias", quant::Type::F32, 1, 16, outputs);
      b.moe_gate_up(op);
    };
  };
  // With a scale a matrix, as NVFP4's files have them.
  const auto build_scaled = [](quant::Type type, int64_t columns, int64_t outputs) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Softmax, .normalize = true};
      route.logits.id = b.activation("logits", kStepRows, 1, 16);
      b.route(route, 4);
      MoeGateUp op;
      op.in.id = b.activation("x", kStepRows, 1, columns);
      op.ids.id = route.ids.id;
      op.gate.id = b.weight("gate", type, 16, outputs, columns);
      op.up.id = b.weight("up", type, 16, outputs, columns);
      op.gate_scale.id = b.weight("gate_scale", quant::Type::F32, 1, 1, 16);
      op.up_scale.id = b.weight("up_scale", quant::Type::F32, 1, 1, 16);
      b.moe_gate_up(op);
    };
  };
  using quant::Type;
  return {{"4 of 16 with shared rows 1", 1, build(true, false)},
          {"4 of 16 MXFP4, biased and clamped, rows 1", 1, build_biased(Type::MXFP4, 576, 288, 7)},
          {"4 of 16 MXFP4, biased and clamped, rows 9", 9, build_biased(Type::MXFP4, 576, 288, 0.7f)},
          {"4 of 16 MXFP4, biased and clamped, rows 150", 150, build_biased(Type::MXFP4, 576, 288, 7)},
          {"4 of 16 NVFP4, scaled, rows 1", 1, build_scaled(Type::NVFP4, 576, 96)},
          {"4 of 16 NVFP4, scaled, rows 9", 9, build_scaled(Type::NVFP4, 576, 96)},
          {"4 of 16 NVFP4, scaled, rows 150", 150, build_scaled(Type::NVFP4, 576, 288)},
          {"4 of 16 Q8_0, biased and clamped, 72 outputs rows 20", 20, build_biased(Type::Q8_0, 320, 72, 7)},
          {"4 of 64 alike Q4_0 rows 2", 2, build_alike(Type::Q4_0, 64, 448, true)},
          {"4 of 64 alike Q4_0 rows 33", 33, build_alike(Type::Q4_0, 64, 2048, true)},
          {"4 of 128 alike Q4_0 rows 70", 70, build_alike(Type::Q4_0, 128, 192, true)},
          {"4 of 8 alike Q4_0 rows 8", 8, build_alike(Type::Q4_0, 8, 7168, false)},
          {"4 of 64 alike Q4_1 rows 5", 5, build_alike(Type::Q4_1, 64, 320, true)},
          {"4 of 16 alike Q4_K rows 16", 16, build_alike(Type::Q4_K, 16, 768, true)},
          {"4 of 64 alike Q4_K rows 5", 5, build_alike(Type::Q4_K, 64, 2048, true)},
          {"4 of 64 alike Q4_K, up first, rows 6", 6, build_alike(Type::Q4_K, 64, 512, false, true)},
          {"4 of 64 alike Q4_0, up first, rows 6", 6, build_alike(Type::Q4_0, 64, 512, false, true)},
          {"4 of 16 alike Q6_K rows 4", 4, build_alike(Type::Q6_K, 16, 768, true)},
          {"4 of 64 alike Q5_0 rows 6", 6, build_alike(Type::Q5_0, 64, 2048, false)},
          {"4 of 64 alike Q5_K, up first, rows 6", 6, build_alike(Type::Q5_K, 64, 768, false, true)},
          {"4 of 64 alike Q8_0 rows 5", 5, build_alike(Type::Q8_0, 64, 768, true)},
          {"4 of 64 alike IQ4_NL rows 7", 7, build_alike(Type::IQ4_NL, 64, 768, false)},
          {"4 of 64 alike IQ4_XS rows 4", 4, build_alike(Type::IQ4_XS, 64, 1536, false)},
          {"4 of 16 alike MXFP4 rows 6", 6, build_alike(Type::MXFP4, 16, 1536, true)},
          {"4 of 16 with shared rows 9", 9, build(true, false)},
          {"4 of 16 rows 9", 9, build(false, false)},
          {"4 of 16 one gate_up tensor rows 9", 9, build(true, true)}};
}

}  // namespace sluice::program
