// What an op leaves in codes of eight bits for the one behind it: values of heads for attention's output
// (gemv/head_matmul_small_batch.h), rows for the next layer's first products (gemv/norm_matmul_q8.h). Rows of
// every bucket that does so, and of the last that does not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

/// Of the error's norm in the result's. What lies between the ops has any numbers, and a code is off by at
/// most 1 / 254 of the largest of its 16 or 32: 0.6 % of the norm where they are normal numbers.
constexpr double kTolerance = 0.01;

void expect_results_alike(const OpCase& of) {
  CUDA_OR_SKIP(cuda);
  CaseRun run(of, 7);
  const auto judge = run.compile(*backend::make_ref_backend()), tested = run.compile(cuda);
  for (const TensorId id : run.results()) {
    const auto expected = run_and_peek(run, *judge, id), actual = run_and_peek(run, *tested, id);
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(expected[i] - actual[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_GT(norm, 0);
    EXPECT_LE(std::sqrt(error / norm), kTolerance) << run.program()[id].name;
  }
}

struct Values {
  int64_t rows, heads, values, outputs;
  quant::Type v_b = quant::Type::Q8_0, output = quant::Type::Q4_0;
};

class CudaCodedValues : public testing::TestWithParam<Values> {};

TEST_P(CudaCodedValues, AreMultipliedAsTheReferenceDoes) {
  const Values p = GetParam();
  expect_results_alike(
      {"values", p.rows, [p](Builder& b) {
         const TensorId context = b.activation("context", kStepRows, p.heads, 512);
         const TensorId values = b.activation("values", kStepRows, p.heads, p.values);
         b.head_matmul(context, b.weight("v_b", p.v_b, p.heads, p.values, 512), Reduce::Columns, values);
         b.matmul_add(b.flatten(values), b.weight("output", p.output, 1, p.outputs, p.heads * p.values),
                      b.activation("residual", kStepRows, 1, p.outputs));
       }});
}

std::string name_of_values(const testing::TestParamInfo<Values>& param) {
  const auto& [rows, heads, values, outputs, v_b, output] = param.param;
  return fmt::format("{}x{}x{}_{}_{}_rows_{}", outputs, heads, values, quant::type_info(v_b).name,
                     quant::type_info(output).name, rows);
}

constexpr auto kQ4 = quant::Type::Q4_0, kK4 = quant::Type::Q4_K, kK6 = quant::Type::Q6_K;

// GLM-4.7-Flash's shapes and DeepSeek-V2-Lite's; columns that are no multiple of four quads.
INSTANTIATE_TEST_SUITE_P(
    Rows, CudaCodedValues,
    testing::Values(Values{2, 20, 256, 2048}, Values{8, 20, 256, 2048}, Values{9, 20, 256, 2048},
                    Values{17, 20, 256, 2048}, Values{32, 20, 256, 2048}, Values{33, 20, 256, 2048},
                    Values{20, 16, 128, 2048}, Values{12, 11, 128, 192}, Values{2, 20, 256, 2048, kK4, kK4},
                    Values{8, 20, 256, 2048, kK4, kK4}, Values{9, 20, 256, 2048, kK4, kK4},
                    Values{32, 20, 256, 2048, kK4, kK4}, Values{33, 20, 256, 2048, kK4, kK4},
                    Values{20, 16, 128, 2048, kK4, kK4}, Values{5, 14, 128, 192, quant::Type::Q8_0, kK4},
                    Values{12, 20, 256, 2048, kK4, kK6}, Values{8, 20, 256, 2048, kK4, kK6},
                    // More blocks than SMs.
                    Values{5, 32, 128, 4096, kK4, kK4}),
    name_of_values);

struct Grouped {
  int64_t rows, heads, kv_heads, columns;
  quant::Type cache = quant::Type::F16;
};

class CudaCodedAttention : public testing::TestWithParam<Grouped> {};

TEST_P(CudaCodedAttention, IsMultipliedAsTheReferenceDoes) {
  const Grouped p = GetParam();
  expect_results_alike({"attention", p.rows, [p](Builder& b) {
                          GqaAttend op{.query = GqaQuery::example(b, {.heads = p.heads,
                                                                      .kv_heads = p.kv_heads,
                                                                      .columns = p.columns,
                                                                      .value = p.columns,
                                                                      .cache = p.cache}),
                                       .scale = 0.125f};
                          const TensorId values = b.gqa_attend(op, p.columns);
                          b.matmul_add(b.flatten(values),
                                       b.weight("output", kK4, 1, 192, p.heads * p.columns),
                                       b.activation("residual", kStepRows, 1, 192));
                        }});
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaCodedAttention,
                         testing::Values(Grouped{1, 32, 4, 128}, Grouped{2, 32, 4, 128},
                                         Grouped{8, 32, 4, 128}, Grouped{9, 32, 4, 128},
                                         Grouped{32, 32, 4, 128}, Grouped{33, 32, 4, 128},
                                         Grouped{7, 12, 4, 64}, Grouped{20, 12, 4, 64},
                                         Grouped{8, 8, 2, 128, quant::Type::Q8_0}),
                         [](const testing::TestParamInfo<Grouped>& param) {
                           const Grouped& p = param.param;
                           return fmt::format("{}_heads_by_{}x{}_{}_rows_{}", p.heads, p.kv_heads, p.columns,
                                              quant::type_info(p.cache).name, p.rows);
                         });

struct Layers {
  int64_t rows, columns, experts, used;
  quant::Type first, second;                                         ///< of the products that take the rows
  quant::Type down = quant::Type::Q4_0, shared = quant::Type::Q6_K;  ///< of the experts that make them
  bool routed_alone = false;                                         ///< there are no shared ones
  int64_t outputs = 192;                                             ///< of the first product
};

class CudaCodedRows : public testing::TestWithParam<Layers> {};

TEST_P(CudaCodedRows, AreMultipliedAsTheReferenceDoes) {
  const Layers p = GetParam();
  expect_results_alike({"layers", p.rows, [p](Builder& b) {
                          constexpr int64_t kInner = 256;
                          Route route{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
                          route.logits.id = b.activation("logits", kStepRows, 1, p.experts);
                          b.route(route, p.used);
                          MoeDownAdd down;
                          down.in.id = b.activation("x", kStepRows, p.used, kInner);
                          down.ids.id = route.ids.id, down.weights.id = route.weights.id;
                          down.down.id = b.weight("down", p.down, p.experts, p.columns, kInner);
                          if (!p.routed_alone) {
                            down.shared_in.id = b.activation("shared_x", kStepRows, 1, kInner);
                            down.shared_down.id = b.weight("shared_down", p.shared, 1, p.columns, kInner);
                          }
                          down.residual.id = b.activation("residual", kStepRows, 1, p.columns);
                          NormMatmul op;
                          op.in.id = b.moe_down_add(down);
                          op.norm.id = b.weight("norm", quant::Type::F32, 1, 1, p.columns);
                          op.a.id = b.weight("a", p.first, 1, p.outputs, p.columns);
                          op.b.id = b.weight("b", p.second, 1, 64, p.columns);
                          op.out_a.id = b.activation("out a", kStepRows, 1, p.outputs);
                          op.out_b.id = b.activation("out b", kStepRows, 1, 64);
                          b.emit(op);
                        }});
}

std::string name_of_layers(const testing::TestParamInfo<Layers>& param) {
  const Layers& p = param.param;
  return fmt::format("{}_columns_{}_of_{}_{}x{}_{}_{}_{}_rows_{}", p.columns, p.used, p.experts, p.outputs,
                     quant::type_info(p.first).name, quant::type_info(p.second).name,
                     quant::type_info(p.down).name,
                     p.routed_alone ? "alone" : quant::type_info(p.shared).name, p.rows);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, CudaCodedRows,
    testing::Values(Layers{2, 2048, 64, 4, kQ4, kQ4}, Layers{7, 2048, 64, 4, kQ4, kQ4},
                    Layers{8, 2048, 64, 6, kQ4, kQ4}, Layers{9, 2048, 64, 4, kQ4, kQ4},
                    Layers{16, 2048, 64, 4, kQ4, kQ4}, Layers{21, 2048, 64, 8, kQ4, kQ4},
                    Layers{32, 2048, 64, 4, kQ4, kQ4}, Layers{33, 2048, 64, 4, kQ4, kQ4},
                    Layers{5, 384, 16, 2, kQ4, kQ4}, Layers{20, 384, 64, 2, kQ4, kQ4},
                    Layers{8, 2048, 64, 4, kQ4, quant::Type::Q8_0},
                    Layers{20, 2048, 64, 4, quant::Type::Q8_0, quant::Type::Q8_0},
                    Layers{2, 2048, 64, 4, kK4, kK4, kK4, kK4}, Layers{8, 2048, 64, 4, kK4, kK4, kK6, kK6},
                    Layers{9, 2048, 64, 4, kK4, kK4, kK6, kK6}, Layers{17, 2048, 64, 4, kK4, kK4, kK4, kK4},
                    Layers{32, 2048, 64, 4, kK4, kK4, kK6, kK4}, Layers{33, 2048, 64, 4, kK4, kK4, kK6, kK6},
                    Layers{20, 2304, 64, 4, kK4, kK4, kK4, kK6}, Layers{7, 2048, 64, 4, kQ4, kK4, kK4, kK6},
                    // Qwen3-30B-A3B's; an odd number of tiles of 16 outputs.
                    Layers{2, 2048, 128, 8, kK4, kK6, kK6, kK6, true, 4608},
                    Layers{8, 2048, 128, 8, kK4, kK6, kK4, kK4, true, 4608},
                    Layers{9, 2048, 128, 8, kK4, kK4, kK6, kK6, true, 4624},
                    Layers{17, 2048, 128, 8, kK4, kK6, kK4, kK4, true, 4624},
                    Layers{32, 2048, 128, 8, kK4, kK6, kK6, kK6, true, 4624},
                    Layers{33, 2048, 128, 8, kK4, kK6, kK4, kK4, true, 4624},
                    Layers{5, 384, 16, 2, kQ4, kQ4, kQ4, kQ4, true},
                    Layers{8, 4096, 16, 2, kK4, kK6, kK4, kK6}),
    name_of_layers);

}  // namespace
}  // namespace sluice::test
