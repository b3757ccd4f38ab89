#include "program/ops/norm_matmul.h"

#include "program/ops/checks.h"

namespace sluice::program {

std::string NormMatmul::attributes() const { return fmt::format("epsilon {:g}", epsilon); }

void NormMatmul::check(const Program& p) const {
  expect_weight(p, "norm", norm.id);
  expect_shape(p, "norm", norm.id, {1, 1, p[in.id].columns()});
  if (p[in.id].heads() != 1) fail("in: {} has heads", p[in.id].name);
  if (!a) fail("a: there is none");
  for (const auto& [weight, out] : products()) {
    if (static_cast<bool>(weight) != (out.id != kNoTensor)) fail("a weight and its result go together");
    if (weight) Matmul{in, weight, out}.check(p);
  }
}

Cost NormMatmul::cost(const Program& p, const StepShape& shape) const {
  Cost cost{bytes_of(p, shape, {in.id, norm.id}), 0, 4 * p.elements(in.id, shape)};
  const double rows = Program::rows(p[in.id], shape);
  for (const auto& [weight, out] : products()) {
    if (!weight) continue;
    cost.bytes_read += p.bytes(weight.id, shape);
    cost.bytes_written += bytes_of(p, shape, {out.id});  // what stays inside another op is not written
    cost.flops += 2 * rows * p.elements(weight.id, shape);
  }
  return cost;
}

void NormMatmul::expand(Builder& builder) const {
  const TensorId normed = builder.rms_norm(in.id, norm.id, epsilon);
  for (const auto& [weight, out] : products()) {
    if (weight) builder.emit(Matmul{{normed}, weight, out});
  }
}

std::vector<OpCase> NormMatmul::cases() {
  using quant::Type;
  const auto build = [](Type second, int64_t third, Type first = Type::Q4_0, Type last = Type::F16) {
    return [=](Builder& b) {
      NormMatmul op{.in = {b.activation("x", kStepRows, 1, 2048)},
                    .norm = {b.weight("norm", Type::F32, 1, 1, 2048)},
                    .a = {b.weight("a", first, 1, 768, 2048)},
                    .b = {b.weight("b", second, 1, 576, 2048)}};
      op.out_a.id = b.activation("out_a", kStepRows, 1, 768);
      op.out_b.id = b.activation("out_b", kStepRows, 1, 576);
      if (third > 0) {
        op.c.id = b.weight("c", last, 1, third, 2048);
        op.out_c.id = b.activation("out_c", kStepRows, 4, third / 4);
      }
      b.emit(op);
    };
  };
  const auto build_four = [](Builder& b) {
    NormMatmul op{.in = {b.activation("x", kStepRows, 1, 2048)},
                  .norm = {b.weight("norm", Type::F32, 1, 1, 2048)}};
    const auto product = [&](Read& weight, Write& out, int64_t outputs) {
      weight.id = b.weight("weight", Type::Q4_K, 1, outputs, 2048);
      out.id = b.activation("product", kStepRows, 1, outputs);
    };
    product(op.a, op.out_a, 512), product(op.b, op.out_b, 256);
    product(op.c, op.out_c, 32), product(op.d, op.out_d, 32);
    b.emit(op);
  };
  // As many outputs as an output matrix has: kernels of their own on some devices.
  const auto build_tall = [](Type type, int64_t columns) {
    return [=](Builder& b) {
      b.norm_matmul(b.activation("x", kStepRows, 1, columns), b.weight("norm", Type::F32, 1, 1, columns),
                    1e-6f, b.weight("weight", type, 1, 33792, columns));
    };
  };
  return {{"Q4_0 and Q8_0 rows 1", 1, build(Type::Q8_0, 0)},
          {"Q4_0 twice rows 7", 7, build(Type::Q4_0, 0)},
          {"Q4_K twice rows 6", 6, build(Type::Q4_K, 0, Type::Q4_K)},
          {"Q4_0, Q4_K and F16 rows 5", 5, build(Type::Q4_K, 64)},
          {"Q4_K twice and Q6_K rows 1", 1, build(Type::Q4_K, 512, Type::Q4_K, Type::Q6_K)},
          {"Q4_K twice and Q6_K rows 6", 6, build(Type::Q4_K, 512, Type::Q4_K, Type::Q6_K)},
          {"Q4_K twice and Q6_K rows 150", 150, build(Type::Q4_K, 512, Type::Q4_K, Type::Q6_K)},
          {"Q5_K, Q6_K and Q5_K rows 1", 1, build(Type::Q6_K, 64, Type::Q5_K, Type::Q5_K)},
          {"four of Q4_K rows 1", 1, build_four},
          {"four of Q4_K rows 6", 6, build_four},
          {"four of Q4_K rows 70", 70, build_four},
          {"33792 of Q4_0 rows 2", 2, build_tall(Type::Q4_0, 256)},
          {"33792 of Q4_K rows 6", 6, build_tall(Type::Q4_K, 768)},
          {"33792 of Q8_0 rows 3", 3, build_tall(Type::Q8_0, 512)}};
}

}  // namespace sluice::program
