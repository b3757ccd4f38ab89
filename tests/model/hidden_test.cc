// Hidden states of outputs: what the output matrix makes of them are the logits.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "model/model.h"
#include "program/op_info.h"
#include "support/golden.h"

namespace sluice::backend {
namespace {

using namespace program;

class HiddenStates : public testing::Test {
 protected:
  /// The matrix that makes the logits, decoded.
  std::vector<float> output_matrix(const Program& program) const {
    for (const Op& op : program.ops()) {
      const auto* product = std::get_if<Matmul>(&op.args);
      if (product == nullptr || product->out.id != program.output()) continue;
      const Tensor& weight = program[product->weight.id];
      std::vector<float> numbers(static_cast<size_t>(weight.shape[1] * weight.shape[2]));
      const auto& bytes = model_.weights[static_cast<size_t>(product->weight.id)];
      quant::type_info(weight.type).decode(bytes.data(), numbers.data(), std::ssize(numbers));
      return numbers;
    }
    return {};
  }

  void check(Backend& backend, double tolerance) {
    const auto executable = backend.compile(model_.program, model_.weights, {64, 64, 1});
    ASSERT_TRUE(executable->facts().hidden);
    const std::vector<float> matrix = output_matrix(executable->program());
    ASSERT_FALSE(matrix.empty());
    for (const int rows : {1, 3, 48}) {
      std::vector<int32_t> tokens, positions, slots, outputs;
      for (int r = 0; r < rows; ++r) {
        tokens.push_back(300 + r), positions.push_back(r), slots.push_back(r);
        if (r % 2 == 0) outputs.push_back(r);
      }
      const std::vector<int32_t> sequences(tokens.size(), 0), tables = {0};
      const std::vector<Want> wants(outputs.size(), Want{.hidden = true});
      const Step step{.input = {tokens, positions, sequences, slots, tables, 1, outputs}, .wants = wants};
      const StepResult result = run_step(*executable, step);
      ASSERT_EQ(result.outputs.size(), outputs.size());
      for (const RowResult& output : result.outputs) {
        double most = 0, off = 0;
        for (size_t n = 0; n < output.logits.size(); ++n) {
          double sum = 0;
          for (size_t c = 0; c < output.hidden.size(); ++c)
            sum += double{matrix[n * output.hidden.size() + c]} * double{output.hidden[c]};
          most = std::max(most, std::abs(sum)), off = std::max(off, std::abs(sum - double{output.logits[n]}));
        }
        EXPECT_LT(off, tolerance * most) << rows << " rows";
      }
    }
  }

  model::Model model_ = model::Model::load(test::source_path("models/fairy-tales.gguf"));
};

TEST_F(HiddenStates, Reference) { check(*make_ref_backend(), 1e-5); }
TEST_F(HiddenStates, Cpu) {
  const auto cpu = make_cpu_backend({.threads = 2});
  check(*cpu, cpu->tolerance(model_.program));
}

}  // namespace
}  // namespace sluice::backend
