// Weights that are loaded once and read by several executables.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "program/builder.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

constexpr int64_t kColumns = 256, kWide = 512;
constexpr int64_t kRows = 3;
constexpr quant::Type kType = quant::Type::Q4_K;

/// A product behind another one.
OpCase two_products(int64_t outputs) {
  return {"", kRows, [=](Builder& b) {
            const TensorId down = b.weight("down", kType, 1, kWide, kColumns);
            const TensorId up = b.weight("up", kType, 1, outputs, kWide);
            b.matmul(b.matmul(b.activation("x", kStepRows, 1, kColumns), down), up);
          }};
}

class WeightSetTest : public testing::Test {
 protected:
  static int64_t bytes_of(int64_t rows, int64_t columns) {
    return rows * quant::bytes_of(quant::type_info(kType), columns);
  }
  Source source(const CaseRun& run) const { return {run.program(), run.weights()}; }

  std::vector<float> results(Executable& executable) {
    main_.run(executable);
    std::vector<float> values(main_.elements(main_.program().output()));
    executable.peek(main_.program().output(), kRows, values);
    return values;
  }

  CaseRun main_{two_products(kColumns), 7};
  std::unique_ptr<Backend> backend_ = backend::make_cpu_backend({.threads = 2});
};

TEST_F(WeightSetTest, ASecondProgramTakesNoSecondCopy) {
  // As a draft would: fewer ops, other ids, the same bytes.
  Program draft;
  Builder b(draft);
  const TensorId up = b.weight("up", kType, 1, kColumns, kWide);
  draft.set_output(b.matmul(b.activation("x", kStepRows, 1, kWide), up));
  WeightBytes draft_bytes(draft.tensors().size());
  for (const Tensor& tensor : main_.program().tensors()) {
    const auto at = static_cast<size_t>(&tensor - main_.program().tensors().data());
    if (tensor.name == "up") draft_bytes[static_cast<size_t>(up)] = main_.weights()[at];
  }
  ASSERT_FALSE(draft_bytes[static_cast<size_t>(up)].empty());
  const Source sources[] = {source(main_), {draft, draft_bytes}};
  const int64_t both = bytes_of(kWide, kColumns) + bytes_of(kColumns, kWide);
  EXPECT_EQ(backend_->load({sources, 1}, {})->bytes(), both);
  const auto weights = backend_->load(sources, {});
  EXPECT_EQ(weights->bytes(), both);

  // Executables have what is theirs alone, and give what they give with weights of their own.
  const CompileOptions options{kRows, kRows, 1};
  const auto shared = backend_->compile(sources[1], weights, options);
  const auto own = backend_->compile(draft, draft_bytes, options);
  EXPECT_EQ(shared->memory_bytes(), own->memory_bytes());
  EXPECT_NE(backend_->compile(sources[0], weights, options), nullptr);
}

TEST_F(WeightSetTest, ExecutablesOverOneSetGiveWhatEachGivesAlone) {
  const Source sources[] = {source(main_)};
  const auto weights = backend_->load(sources, {});
  const std::vector<float> alone = results(*main_.compile(*backend_));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(results(*main_.compile(*backend_, weights)), alone);
}

TEST_F(WeightSetTest, ProgressEndsWithAll) {
  const Source sources[] = {source(main_)};
  int64_t last = 0, all = 0;
  const auto weights = backend_->load(sources, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
  });
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, weights->bytes());
}

TEST_F(WeightSetTest, WeightsThatStayInTheFileTakeNoMemory) {
  backend_ = backend::make_cpu_backend({.threads = 2, .repack = false});
  const Source sources[] = {source(main_)};
  EXPECT_EQ(backend_->load(sources, {})->bytes(), 0);
}

}  // namespace
}  // namespace sluice::test
