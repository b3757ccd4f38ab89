// A router multiplied by the kernel that makes its row (matmul_add), for the norm_moe_gate_up behind it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

constexpr int64_t kColumns = 2048, kOutputs = 64;

struct Param {
  int64_t experts, used;
  Gating gating;
  quant::Type type;  ///< of what makes the row
  int layers;
  int64_t rows = 1;
  bool biased = false;  ///< the row and the logits; experts of a type that may have biases
};

class CudaRouter : public testing::TestWithParam<Param> {};

/// Layers beside each other: rows of their own inputs, routed.
OpCase layers_of(const Param& param) {
  return {"layers", param.rows, [param](Builder& b) {
            for (int layer = 0; layer < param.layers; ++layer) {
              const auto name = [&](const char* what) { return fmt::format("{} {}", what, layer); };
              const auto bias = [&](const char* what, int64_t columns) {
                return Read{param.biased ? b.weight(name(what), quant::Type::F32, 1, 1, columns) : kNoTensor};
              };
              const auto experts = param.biased ? quant::Type::MXFP4 : quant::Type::Q4_0;
              const TensorId in = b.activation(name("x"), kStepRows, 4, 1024);
              const TensorId row = b.matmul_add(in, b.weight(name("w"), param.type, 1, kColumns, 4096),
                                                b.activation(name("residual"), kStepRows, 1, kColumns),
                                                bias("bias", kColumns).id);
              NormMoeGateUp op;
              op.route = {.in = {row},
                          .norm = {b.weight(name("norm"), quant::Type::F32, 1, 1, kColumns)},
                          .router = {b.weight(name("router"), quant::Type::F32, 1, param.experts, kColumns)},
                          .router_bias = bias("router_bias", param.experts),
                          .route = {.gating = param.gating, .normalize = true, .scale = 1.8f}};
              op.route.route.ids.id = b.activation(name("ids"), kStepRows, 1, param.used, quant::Type::I32);
              op.route.route.weights.id = b.activation(name("weights"), kStepRows, 1, param.used);
              op.experts.gate.id = b.weight(name("gate"), experts, param.experts, kOutputs, kColumns);
              op.experts.up.id = b.weight(name("up"), experts, param.experts, kOutputs, kColumns);
              op.experts.out.id = b.activation(name("gated"), kStepRows, param.used, kOutputs);
              b.emit(op);
            }
          }};
}

/// Ids and weights of all layers.
std::vector<float> routed(const CaseRun& run, Executable& executable) {
  std::vector<float> all;
  for (const Op& op : run.program().ops()) {
    const auto* gate_up = std::get_if<NormMoeGateUp>(&op.args);
    if (gate_up == nullptr) continue;
    for (const TensorId id : {gate_up->route.route.ids.id, gate_up->route.route.weights.id}) {
      std::vector<float> values(run.elements(id));
      executable.peek(id, run.rows_of(id), values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

TEST_P(CudaRouter, IsMultipliedWhereItsRowIsMade) {
  CUDA_OR_SKIP(cuda);
  CaseRun run(layers_of(GetParam()), 3);
  const auto judge = run.compile(*backend::make_ref_backend()), tested = run.compile(cuda);
  size_t joined = 0;
  for (const BoundKernel& kernel : tested->bound_for(GetParam().rows, 1))
    joined += kernel.name.find("(produces sums of the router)") != std::string::npos;
  // A single layer's sums would have nobody to clear them.
  EXPECT_EQ(joined, GetParam().layers > 1 ? static_cast<size_t>(GetParam().layers) : 0);
  run.run(*judge);
  const std::vector<float> expected = routed(run, *judge);
  for (int step = 0; step < 5; ++step) {
    run.poke_inputs(*tested);
    run.run(*tested);
    const std::vector<float> seen = routed(run, *tested);
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_NEAR(seen[i], expected[i], 1e-4) << i << " of step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, CudaRouter,
                         testing::Values(Param{64, 4, Gating::Sigmoid, quant::Type::Q4_0, 3},
                                         Param{64, 6, Gating::Softmax, quant::Type::Q8_0, 2},
                                         Param{128, 8, Gating::Softmax, quant::Type::Q6_K, 3},
                                         Param{36, 3, Gating::Sigmoid, quant::Type::Q4_K, 4},
                                         Param{64, 4, Gating::Sigmoid, quant::Type::Q4_0, 1},
                                         Param{64, 4, Gating::Sigmoid, quant::Type::Q4_0, 3, 2},
                                         Param{32, 4, Gating::Softmax, quant::Type::Q8_0, 3, 1, true}));

}  // namespace
}  // namespace sluice::test
