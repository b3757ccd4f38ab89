#include "program/ops/moe_down_add.h"

#include "program/ops/checks.h"

namespace sluice::program {

void MoeDownAdd::check(const Program& p) const {
  expect_weight(p, "down", down.id);
  const auto& [experts, outputs, inputs] = p[down.id].shape;
  const int64_t used = p[ids.id].columns();
  expect_type(p, "ids", ids.id, quant::Type::I32);
  expect_shape(p, "ids", ids.id, {kStepRows, 1, used});
  expect_shape(p, "weights", weights.id, {kStepRows, 1, used});
  expect_shape(p, "in", in.id, {kStepRows, used, inputs});
  expect_shape(p, "out", out.id, {kStepRows, 1, outputs});
  if (static_cast<bool>(shared_in) != static_cast<bool>(shared_down)) fail("shared experts need in and down");
  if (shared_in) Matmul{shared_in, shared_down, out}.check(p);
  if (down_bias) {
    expect_weight(p, "down_bias", down_bias.id);
    expect_shape(p, "down_bias", down_bias.id, {1, experts, outputs});
  }
  if (down_scale) Scale{weights, down_scale, ids, {weights.id}}.check(p);
  if (residual) expect_shape(p, "residual", residual.id, p[out.id].shape);
}

Cost MoeDownAdd::cost(const Program& p, const StepShape& shape) const {
  const auto used = static_cast<double>(p[ids.id].columns());
  const auto& [experts, outputs, inputs] = p[down.id].shape;
  Cost cost{bytes_of(p, shape,
                     {in.id, ids.id, weights.id, shared_in.id, shared_down.id, residual.id, down_scale.id}) +
                expert_bytes(p, down.id, used, shape) + bias_bytes(p, down_bias.id, used, shape),
            p.bytes(out.id, shape),
            shape.rows * used * static_cast<double>(2 * outputs * inputs + 2 * outputs)};
  if (shared_down) cost.flops += 2 * shape.rows * p.elements(shared_down.id, shape);
  return cost;
}

void MoeDownAdd::expand(Builder& b) const {
  if (down_scale && !down_bias) {  // the sum is linear in each expert's products
    MoeDownAdd plain = *this;
    plain.weights.id = b.scale(weights.id, down_scale.id, ids.id), plain.down_scale = {};
    b.emit(plain);
    return;
  }
  // A copy: tensors move when others are added.
  const auto [rows, one, columns] = b.program()[out.id].shape;
  const int64_t used = b.program()[ids.id].columns();
  TensorId each = b.activation("expert_down", rows, used, columns);
  b.emit(ExpertMatmul{in, down, ids, {each}});
  if (down_scale) each = b.scale(each, down_scale.id, ids.id);
  TensorId biased = each;
  if (down_bias) {
    biased = b.activation("expert_down", rows, used, columns);
    b.emit(ExpertBias{{each}, down_bias, ids, {biased}});
  }
  // The residual comes last, behind all that places may each have a part of.
  const auto result = [&, rows = rows, columns = columns](bool is_last, const char* name) {
    return is_last ? out.id : b.activation(name, rows, 1, columns);
  };
  const TensorId sum = result(!shared_in && !residual, "experts_sum");
  b.emit(ExpertCombine{{biased}, weights, {sum}});
  const TensorId all = shared_in ? result(!residual, "with_shared") : sum;
  if (shared_in) b.emit(MatmulAdd{shared_in, shared_down, {sum}, {}, {all}});
  if (residual) b.emit(Add{{all}, residual, out});
}

std::vector<OpCase> MoeDownAdd::cases() {
  const auto build = [](bool shared, bool residual = true, bool biased = false,
                        quant::Type type = quant::Type::Q4_1, bool scaled = false) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
      route.logits.id = b.activation("logits", kStepRows, 1, 16);
      b.route(route, 4);
      MoeDownAdd op;
      op.in.id = b.activation("x", kStepRows, 4, 256);
      op.ids.id = route.ids.id;
      op.weights.id = route.weights.id;
      op.down.id = b.weight("down", type, 16, 512, 256);
      if (biased) op.down_bias.id = b.weight("down_bias", quant::Type::F32, 1, 16, 512);
      if (scaled) op.down_scale.id = b.weight("down_scale", quant::Type::F32, 1, 1, 16);
      if (shared) {
        op.shared_in.id = b.activation("shared_x", kStepRows, 1, 512);
        op.shared_down.id = b.weight("shared_down", quant::Type::Q6_K, 1, 512, 512);
      }
      if (residual) op.residual.id = b.activation("residual_in", kStepRows, 1, 512);
      b.moe_down_add(op);
    };
  };
  // Routers of many experts: few tokens each. shared: of the shared experts' type, or F32: there are none.
  const auto build_many = [](quant::Type type, int64_t experts, int64_t columns, quant::Type shared,
                             int64_t outputs = 80, int64_t shared_columns = 0) {
    return [=](Builder& b) {
      Route route{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
      route.logits.id = b.activation("logits", kStepRows, 1, experts);
      b.route(route, 4);
      MoeDownAdd op;
      op.in.id = b.activation("x", kStepRows, 4, columns);
      op.ids.id = route.ids.id;
      op.weights.id = route.weights.id;
      op.down.id = b.weight("down", type, experts, outputs, columns);
      if (shared != quant::Type::F32) {
        const int64_t width = shared_columns > 0 ? shared_columns : columns;
        op.shared_in.id = b.activation("shared_x", kStepRows, 1, width);
        op.shared_down.id = b.weight("shared_down", shared, 1, outputs, width);
      }
      op.residual.id = b.activation("residual_in", kStepRows, 1, outputs);
      b.moe_down_add(op);
    };
  };
  using quant::Type;
  return {{"4 of 16 with shared rows 1", 1, build(true)},
          {"4 of 64 alike Q4_0 rows 2", 2, build_many(Type::Q4_0, 64, 1408, Type::Q4_0)},
          {"4 of 64 alike Q4_0 rows 33", 33, build_many(Type::Q4_0, 64, 1536, Type::Q4_0)},
          {"4 of 128 alike Q4_0 rows 70", 70, build_many(Type::Q4_0, 128, 192, Type::Q4_0)},
          {"4 of 64 alike Q4_1 rows 5", 5, build_many(Type::Q4_1, 64, 320, Type::F32)},
          {"4 of 16 alike Q4_K rows 16", 16, build_many(Type::Q4_K, 16, 768, Type::Q4_K)},
          {"4 of 64 Q4_0 with shared Q6_K rows 20", 20, build_many(Type::Q4_0, 64, 1536, Type::Q6_K)},
          {"4 of 64 Q4_0 with shared Q6_K, 128 outputs rows 70", 70,
           build_many(Type::Q4_0, 64, 512, Type::Q6_K, 128)},
          {"4 of 16 Q5_0 with shared Q4_K rows 1", 1, build_many(Type::Q5_0, 16, 1408, Type::Q4_K, 80, 2816)},
          {"4 of 16 Q8_0 with shared Q6_K rows 1", 1, build_many(Type::Q8_0, 16, 1408, Type::Q6_K, 80, 2816)},
          {"4 of 16 Q6_K of 768 columns rows 1", 1, build_many(Type::Q6_K, 16, 768, Type::F32)},
          {"4 of 16 MXFP4 of 2880 columns rows 1", 1, build_many(Type::MXFP4, 16, 2880, Type::F32)},
          {"4 of 64 Q4_K rows 4", 4, build_many(Type::Q4_K, 64, 1536, Type::Q4_K)},
          {"4 of 64 Q6_K rows 5", 5, build_many(Type::Q6_K, 64, 1536, Type::Q6_K)},
          {"4 of 64 Q6_K with shared Q4_K, 128 outputs rows 7", 7,
           build_many(Type::Q6_K, 64, 256, Type::Q4_K, 128)},
          {"4 of 16 Q6_K rows 12", 12, build_many(Type::Q6_K, 16, 768, Type::F32)},
          {"4 of 64 Q6_K of 768 columns rows 5", 5, build_many(Type::Q6_K, 64, 768, Type::F32)},
          {"4 of 64 Q5_0 rows 6", 6, build_many(Type::Q5_0, 64, 768, Type::Q5_0)},
          {"4 of 64 Q5_K rows 5", 5, build_many(Type::Q5_K, 64, 1536, Type::Q5_K)},
          {"4 of 64 Q8_0 rows 4", 4, build_many(Type::Q8_0, 64, 1536, Type::Q8_0)},
          {"4 of 64 IQ4_NL rows 7", 7, build_many(Type::IQ4_NL, 64, 256, Type::IQ4_NL)},
          {"4 of 64 IQ4_XS rows 5", 5, build_many(Type::IQ4_XS, 64, 512, Type::MXFP4)},
          {"4 of 16 MXFP4 rows 6", 6, build_many(Type::MXFP4, 16, 1536, Type::Q8_0)},
          {"4 of 16 MXFP4 of 640 columns rows 5", 5, build_many(Type::MXFP4, 16, 640, Type::F32)},
          {"4 of 16 IQ4_XS of 768 columns rows 4", 4, build_many(Type::IQ4_XS, 16, 768, Type::F32)},
          {"4 of 16 with shared rows 9", 9, build(true)},
          {"4 of 16 rows 9", 9, build(false)},
          {"4 of 16 MXFP4, biased, rows 1", 1, build(false, true, true, Type::MXFP4)},
          {"4 of 16 MXFP4, biased, rows 9", 9, build(false, true, true, Type::MXFP4)},
          {"4 of 16 MXFP4, biased, rows 150", 150, build(false, true, true, Type::MXFP4)},
          {"4 of 16 NVFP4, scaled, rows 1", 1, build(false, true, false, Type::NVFP4, true)},
          {"4 of 16 NVFP4, scaled and biased, rows 9", 9, build(false, true, true, Type::NVFP4, true)},
          {"4 of 16 NVFP4, scaled, rows 70", 70, build(false, true, false, Type::NVFP4, true)},
          {"4 of 16 with shared, biased, no residual, rows 9", 9, build(true, false, true)},
          {"4 of 16 with shared, biased, no residual, rows 70", 70, build(true, false, true)},
          {"4 of 16 with shared, no residual, rows 1", 1, build(true, false)},
          {"4 of 16, no residual, rows 1", 1, build(false, false)},
          {"4 of 16 with shared, no residual, rows 70", 70, build(true, false)},
          {"4 of 16, no residual, rows 70", 70, build(false, false)}};
}

}  // namespace sluice::program
