// Weights that are uploaded once and read by several executables.
#include <gtest/gtest.h>

#include "program/builder.h"
#include "support/cuda.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

constexpr int64_t kColumns = 8192, kOutputs = 32768, kRows = 2;

TEST(CudaWeights, ASecondExecutableTakesNoSecondCopy) {
  CUDA_ALONE_OR_SKIP(cuda);
  CaseRun run({"", kRows,
               [](Builder& b) {
                 b.matmul(b.activation("x", kStepRows, 1, kColumns),
                          b.weight("w", quant::Type::Q8_0, 1, kOutputs, kColumns));
               }},
              3);
  const Source source{run.program(), run.weights()};
  int64_t done = 0, total = 0;
  const auto weights = cuda.load({&source, 1}, [&](int64_t so_far, int64_t all) {
    EXPECT_GE(so_far, done);
    done = so_far;
    total = all;
  });
  const int64_t file = kOutputs * quant::bytes_of(quant::type_info(quant::Type::Q8_0), kColumns);
  EXPECT_EQ(done, file);
  EXPECT_EQ(total, file);
  EXPECT_EQ(weights->bytes(), cuda.memory_needs(run.program(), {kRows, kRows, 1}).weights_bytes);

  const auto results = [&](Executable& executable) {
    run.run(executable);
    std::vector<float> values(run.elements(run.program().output()));
    executable.peek(run.program().output(), kRows, values);
    return values;
  };
  const auto first = run.compile(cuda, weights);
  const int64_t before = cuda.available_bytes();
  const auto second = run.compile(cuda, weights);
  EXPECT_LT(before - cuda.available_bytes(), weights->bytes() / 4);
  EXPECT_EQ(results(*first), results(*second));
}

}  // namespace
}  // namespace sluice::test
