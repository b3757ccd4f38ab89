#include "program/ops/head_matmul.h"

#include "program/ops/checks.h"

namespace sluice::program {

std::string HeadMatmul::attributes() const {
  return reduce == Reduce::Columns ? "reduce columns" : "reduce rows";
}

void HeadMatmul::check(const Program& p) const {
  expect_weight(p, "weight", weight.id);
  const auto& i = p[in.id].shape;
  const auto& o = p[out.id].shape;
  const int64_t heads = i[1], inputs = i[2], outputs = o[2];
  if (reduce == Reduce::Columns) {
    expect_shape(p, "weight", weight.id, {heads, outputs, inputs});
  } else {
    expect_shape(p, "weight", weight.id, {heads, inputs, outputs});
  }
  expect_shape(p, "out", out.id, {i[0], heads, outputs});
}

Cost HeadMatmul::cost(const Program& p, const StepShape& shape) const {
  const double rows = Program::rows(p[in.id], shape);
  return {bytes_of(p, shape, {in.id, weight.id}), p.bytes(out.id, shape),
          2 * rows * p.elements(weight.id, shape)};
}

void HeadMatmul::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t rows = Program::rows(p[in.id], input.rows(), input.outputs());
  const int64_t heads = p[in.id].heads(), inputs = p[in.id].columns(), outputs = p[out.id].columns();
  const int64_t stored_rows = p[weight.id].shape[1], stored_columns = p[weight.id].columns();
  std::vector<float> matrix(static_cast<size_t>(stored_rows * stored_columns));
  std::vector<float> w(static_cast<size_t>(inputs));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < stored_rows; ++i)
      memory.weight_row(weight.id, h, i, &matrix[static_cast<size_t>(i * stored_columns)]);
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t c = 0; c < inputs; ++c) {
        const int64_t at = reduce == Reduce::Columns ? n * stored_columns + c : c * stored_columns + n;
        w[static_cast<size_t>(c)] = matrix[static_cast<size_t>(at)];
      }
      for (int64_t r = 0; r < rows; ++r) {
        memory.row(out.id, r, h)[n] = ref_dot(memory.row(in.id, r, h), w.data(), inputs);
      }
    }
  }
}

std::vector<OpCase> HeadMatmul::cases() {
  std::vector<OpCase> list;
  for (const auto type : {quant::Type::Q8_0, quant::Type::Q5_0, quant::Type::MXFP4}) {
    const std::string name = quant::type_info(type).name;
    list.push_back({name + " k_b 20x512x192", 3, [type](Builder& b) {
                      // Queries lie with their rotary columns beside them, and so do the results.
                      const TensorId q = b.columns(b.activation("q", kStepRows, 20, 256), "q_nope", 0, 192);
                      const TensorId out =
                          b.columns(b.activation("latent", kStepRows, 20, 576), "absorbed", 0, 512);
                      b.head_matmul(q, b.weight("k_b", type, 20, 512, 192), Reduce::Columns, out);
                    }});
    list.push_back({name + " v_b 20x256x512", 3, [type](Builder& b) {
                      const TensorId q = b.activation("context", kStepRows, 20, 512);
                      const TensorId out = b.activation("values", kStepRows, 20, 256);
                      b.head_matmul(q, b.weight("v_b", type, 20, 256, 512), Reduce::Columns, out);
                    }});
    list.push_back({name + " kv_b rows 16x128x512", 3, [type](Builder& b) {
                      const TensorId q = b.activation("q", kStepRows, 16, 128);
                      const TensorId out = b.activation("absorbed", kStepRows, 16, 512);
                      const TensorId kv_b = b.weight("kv_b", type, 1, 16 * 256, 512);
                      b.head_matmul(q, b.weight_view(kv_b, "k_b", 16, 128, 0, 256), Reduce::Rows, out);
                    }});
  }
  list.push_back({"Q4_K v_b 20x256x512", 4, [](Builder& b) {
                    const TensorId q = b.activation("context", kStepRows, 20, 512);
                    const TensorId out = b.activation("values", kStepRows, 20, 256);
                    b.head_matmul(q, b.weight("v_b", quant::Type::Q4_K, 20, 256, 512), Reduce::Columns, out);
                  }});
  return list;
}

}  // namespace sluice::program
